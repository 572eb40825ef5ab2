#!/usr/bin/env bash
# Benchmarks on a GPU. Pack them here; the machine with the GPU needs neither Rust nor a network.
#
#     benches/gpu.sh pack [FOLDER]            build programs, tests, fake driver and wheel into FOLDER (target/gpu)
#     FOLDER/gpu.sh run FOLDER [OUT]          run everything on the machine with the GPU, in under ten minutes, into OUT
#     FOLDER/gpu.sh run --fake FOLDER [OUT]   the same with the fake driver: a quick check; its times mean nothing
#
# If a step fails or takes too long, the others still run. The result is OUT/gpu-DATE.md, with its JSON. The
# output of all steps is in OUT/logs.
set -euo pipefail

# The time limit for all steps together, in seconds.
readonly BUDGET_S=${TENSORLEND_GPU_BUDGET_S:-570}

usage() {
    sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 2
}

have() { command -v "$1" >/dev/null 2>&1; }

# built ARGUMENTS...: runs cargo, and prints kind, name and path of each program, separated by tabs.
built() {
    cargo "$@" --profile dist --locked --message-format=json | python3 -c '
import json, sys
for line in sys.stdin:
    if not line.startswith("{"):
        continue
    message = json.loads(line)
    if message.get("reason") == "compiler-artifact":
        name, path = message["target"]["name"], message.get("executable")
        if path:
            print(message["target"]["kind"][0], name, path, sep="\t")
        elif name == "fakecuda":
            for path in message["filenames"]:
                if path.endswith(".so"):
                    print("library", name, path, sep="\t")
'
}

# has_test PACKAGE NAME: succeeds if this checkout contains the package's test.
has_test() { [[ -f $1/tests/$2.rs || -d $1/tests/$2 ]]; }

pack() {
    local root folder kind name path parts=() tests=()
    root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
    cd "$root"
    folder=${1:-${CARGO_TARGET_DIR:-target}/gpu}
    rm -rf "${folder:?}"/{bin,docs,fake,gpu,python,wheel}
    mkdir -p "$folder"/{bin,docs,fake,gpu,python/tests,wheel}
    parts=(-p tensorlend-benches -p tensorlend-fakecuda --bin tensorlend-gpu-calls --bin tensorlend-gpu-facts)
    tests=(-p tensorlend-cuda --test driver)
    if has_test tests conformance; then
        # The test starts its agent programs from its own folder.
        parts+=(-p tensorlend-tests --bin tensorlend-agent --bin tensorlend-placed)
        tests+=(-p tensorlend-tests --test conformance)
    fi
    # A build of their own, as for a release: the benchmarks' features must not change the shipped programs.
    built build -p tensorlend-daemon -p tensorlend-cli --bins >"$folder/programs"
    built build "${parts[@]}" --features tensorlend-benches/cuda --lib --bench allocators --bench handover >"$folder/built"
    built test --no-run "${tests[@]}" >>"$folder/built"
    cat "$folder/programs" >>"$folder/built"
    while IFS=$'\t' read -r kind name path; do
        case $kind in
            library) cp "$path" "$folder/fake/libcuda.so.1" ;;
            test) cp "$path" "$folder/bin/test-$name" ;;
            # Cargo also builds and lists the programs that the tests need.
            bin) case $name in tensorlend | tensorlendd | tensorlend-agent | tensorlend-placed | tensorlend-gpu-*) cp "$path" "$folder/bin/$name" ;; esac ;;
            *) cp "$path" "$folder/bin/$name" ;;
        esac
    done <"$folder/built"
    rm "$folder/built" "$folder/programs"
    if have strip; then
        strip "$folder"/bin/* "$folder/fake/libcuda.so.1"
    else
        echo "no strip here (binutils): the programs keep their symbols" >&2
    fi
    ln -sf libcuda.so.1 "$folder/fake/libcuda.so"
    ln -sf ../fake/libcuda.so.1 "$folder/bin/libfakecuda.so"
    cp benches/gpu.sh "$folder/"
    cp benches/gpu/*.py tests/fakecuda/kernels.ptx "$folder/gpu/"
    cp bindings/python/tests/{test_device_gpu,cards,waiting}.py "$folder/python/tests/"
    # The tests run the programs of this page.
    cp docs/gpu.md "$folder/docs/"
    git rev-parse --short HEAD >"$folder/commit" 2>/dev/null || echo unknown >"$folder/commit"
    if have maturin; then
        timeout 900 maturin build --quiet --profile dist --strip --locked --manifest-path bindings/python/Cargo.toml --out "$folder/wheel" ||
            echo "no wheel: maturin failed" >&2
    else
        echo "no wheel: maturin is not installed (pip install maturin); the Python figures will be without tensorlend" >&2
    fi
    du -sm "$folder" | awk '{ print $2 ": " $1 " MiB" }'
    if (($(du -sm "$folder" | cut -f1) >= 60)); then
        echo "that is too much: below 60 MiB is wanted" >&2
        return 1
    fi
}

# step NAME LIMIT_S COMMAND...: runs the command, with its output in OUT/logs/NAME.txt and NAME.err, and appends its
# exit status and seconds to OUT/logs/steps.tsv.
step() {
    local name=$1 limit_s=$2 left_s status=0 begin_s=$SECONDS
    shift 2
    left_s=$((BUDGET_S - SECONDS))
    ((limit_s < left_s)) || limit_s=$left_s
    if ((limit_s < 5)); then
        echo "==> $name: left out, no time"
        printf '%s\t%s\t%s\n' "$name" "left out" 0 >>"$logs/steps.tsv"
        return
    fi
    echo "==> $name"
    timeout --kill-after=5 "$limit_s" "$@" >"$logs/$name.txt" 2>"$logs/$name.err" || status=$?
    echo "==> $name: exit status $status after $((SECONDS - begin_s)) s"
    printf '%s\t%s\t%s\n' "$name" "$status" "$((SECONDS - begin_s))" >>"$logs/steps.tsv"
    ((status == 0)) || failed+=("$name")
}

run() {
    local fake=no folder out logs bench=(--bench) quick=() weights=() python=python3 stamp work failed=()
    if [[ ${1:-} == --fake ]]; then
        fake=yes
        shift
    fi
    [[ -n ${1:-} ]] || usage
    folder=$(cd "$1" && pwd)
    out=${2:-gpu-results}
    mkdir -p "$out/logs"
    out=$(cd "$out" && pwd)
    logs=$out/logs
    rm -f "$logs"/*
    work=$(mktemp -d)
    # shellcheck disable=SC2064 # expand $work now
    trap "rm -rf '$work'" EXIT
    stamp=$(date -u +%F)
    export TENSORLEND_BIN_DIR=$folder/bin TENSORLEND_RESULTS_DIR=$logs TENSORLEND_STUDY=device TENSORLEND_ROW_S=6
    unset TENSORLEND_SOCKET
    if [[ $fake == yes ]]; then
        mkdir -p "$work/machine"
        export LD_LIBRARY_PATH=$folder/fake FAKECUDA_DIR=$work/machine FAKECUDA_MEMORY=$((4 << 30)) TENSORLEND_QUICK=1
        export TENSORLEND_CUDA_LIB=$folder/fake
        bench=(--quick)
        quick=(--quick)
        weights=(--bytes $((1 << 30)) --tensors 16)
    fi
    if compgen -G "$folder/wheel/*.whl" >/dev/null; then
        # A wheel is a zip archive. Python can import the package from the unpacked archive without an installation.
        mkdir -p "$work/python"
        "$python" -m zipfile -e "$folder"/wheel/*.whl "$work/python"
        # Python's zipfile does not restore the executable bit.
        find "$work/python" -path '*bin*' -type f -exec chmod +x {} +
        export PYTHONPATH=$work/python${PYTHONPATH:+:$PYTHONPATH}
    fi

    step machine 20 bash -c 'uname -a; nproc; cat /proc/loadavg; nvidia-smi || echo "no nvidia-smi"; nvidia-smi -q || true'
    step driver 60 "$folder/bin/test-driver" --nocapture --test-threads=1
    if [[ -x $folder/bin/test-conformance ]]; then
        if [[ $fake == yes ]]; then
            step conformance 60 "$folder/bin/test-conformance" --nocapture --test-threads=1 on_a_device_with_pool
        else
            step conformance 60 env TENSORLEND_GPU=1 "$folder/bin/test-conformance" --nocapture --exact on_a_real_device
        fi
    fi
    if [[ $fake == no ]] && "$python" -c 'import pytest, torch' 2>/dev/null; then
        step python 90 "$python" -m pytest -p no:cacheprovider -c /dev/null --rootdir "$folder" -q -rs "$folder/python/tests/test_device_gpu.py"
    fi
    step cupy 50 "$python" "$folder/gpu/cupy_check.py" --bin "$folder/bin" --out "$logs/cupy.json"
    step engine 90 "$python" "$folder/gpu/engine.py" --bin "$folder/bin" "${weights[@]}" --out "$logs/engine.json"
    step arrays 90 "$python" "$folder/gpu/arrays.py" --bin "$folder/bin" "${quick[@]}" --out "$logs/arrays.json"
    step handover 100 "$folder/bin/handover" "${bench[@]}"
    step facts 200 "$folder/bin/tensorlend-gpu-facts"
    # The fake driver writes a log of calls, which the benchmark counts.
    if [[ $fake == yes ]]; then export FAKECUDA_LOG=$work/calls; fi
    step allocators 190 "$folder/bin/allocators" "${bench[@]}"
    if [[ $fake == yes ]]; then step calls 120 "$folder/bin/tensorlend-gpu-calls" "$logs/calls.json"; fi
    unset FAKECUDA_LOG
    "$python" "$folder/gpu/report.py" --logs "$logs" --out "$out" --stamp "$stamp" --commit "$(cat "$folder/commit")" --fake "$fake"
    if ((${#failed[@]} > 0)); then
        echo "failed: ${failed[*]}; what they said is in $logs" >&2
        # On a GPU, the figures of the other steps are still a result. With the fake driver, every step must succeed.
        [[ $fake == no ]] || return 1
    fi
}

case ${1:-} in
    pack) pack "${@:2}" ;;
    run) run "${@:2}" ;;
    *) usage ;;
esac
