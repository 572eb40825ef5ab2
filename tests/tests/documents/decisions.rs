//! Blocks that are not simply run: one line for each. A `sh` block without a line here is run.

/// The treatment of a block.
#[derive(Clone, Copy, Debug)]
pub enum Decision {
    /// Run after these commands, which create the state that the page presumes.
    After(&'static str),
    /// Not run, for this reason. The programs must accept all calls of `tensorlend` and `tensorlendd` in it.
    Understood(&'static str),
}
use Decision::{After, Understood};

const NEEDS_INSTALL: &str = "installs files and units on the machine, as root or for a user";
const NEEDS_MANAGER: &str = "asks the machine's own service manager";
const NEEDS_GPU_PACK: &str = "builds a release for minutes; scripts/test packs it and runs it when asked to";
const NEEDS_ENGINE: &str =
    "needs a container engine; tests/tests/containers.rs runs clients in namespaces as one makes them";
const BUILDS: &str = "builds a release for minutes";

/// Page, first line of the block, decision. Each line must match exactly one block.
pub const DECISIONS: &[(&str, &str, Decision)] = &[
    (
        "README.md",
        "cargo demo       # two to four minutes with the build",
        Understood("builds a release, and is scripts/test itself; tests/tests/quick_start.rs runs the demo"),
    ),
    (
        "README.md",
        "scripts/install --python   # the daemon, the command line tool and the Python package: five minutes on two cores",
        Understood(BUILDS),
    ),
    (
        "README.md",
        "c++ -std=c++17 reader.cpp -o reader $(pkg-config --cflags --libs tensorlend) && ./reader",
        After("tensorlend put camera/front ../tensorlend/examples/data/china.jpg"),
    ),
    ("docs/how-to/command-line.md", "tensorlend put weights model.safetensors && tensorlend ls", After(SOME_FILES)),
    (
        "docs/containers.md",
        "docker run --rm --volume /run/tensorlend:/run/tensorlend:ro --env TENSORLEND_SOCKET=/run/tensorlend/tensorlend.sock IMAGE python reader.py",
        Understood(NEEDS_ENGINE),
    ),
    (
        "docs/containers.md",
        "docker build -f packaging/container/Containerfile.daemon -t tensorlendd .",
        Understood(NEEDS_ENGINE),
    ),
    (
        "docs/service.md",
        "tensorlendd --fd-store /run/user/1000/tensorlend-store.sock &",
        Understood("needs the folder of user 1000; tests/tests/fd_store.rs runs a store and daemons"),
    ),
    (
        "docs/service.md",
        "tensorlendd --config \"$PWD/tensorlendd.toml\" &",
        Understood("needs the folder of user 1000; tests/tests/fd_store.rs runs a store and daemons"),
    ),
    (
        "docs/service.md",
        "docker run -d --name tensorlend-store --restart always --volume tensorlend-store:/run/tensorlend --entrypoint tensorlendd tensorlendd --fd-store /run/tensorlend/store.sock",
        Understood(NEEDS_ENGINE),
    ),
    (
        "docs/how-to/kv-cache.md",
        "vllm serve MODEL --disable-hybrid-kv-cache-manager --kv-transfer-config '{",
        Understood("serves a model that must be downloaded; bindings/python/tests/test_vllm.py runs engines of vLLM"),
    ),
    (
        "docs/how-to/weights.md",
        "vllm serve MODEL --load-format tensorlend --model-loader-extra-config '{\"name\": \"llama\"}'",
        Understood(
            "serves a model that must be downloaded; bindings/python/tests/test_vllm.py starts engines of vLLM in this way",
        ),
    ),
    (
        "docs/service.md",
        "cat >tensorlendd.toml <<'END'",
        Understood("needs a user with a range of uids; tests/tests/rootless.rs runs it as one"),
    ),
    (
        "docs/operations.md",
        "runuser -u tensorlend -- tensorlendd --check-config --config /etc/tensorlend/tensorlendd.toml && systemctl reload tensorlendd",
        Understood(NEEDS_MANAGER),
    ),
    ("docs/how-to/upgrade.md", "git pull", Understood(BUILDS)),
    (
        "docs/internals/security.md",
        "cargo test -p tensorlend-tests --test hostile -- --nocapture   # the matrix of attacks, printed",
        Understood("runs tests that scripts/test runs"),
    ),
    (
        "docs/c.md",
        "cc program.c -o program $(pkg-config --cflags --libs tensorlend)",
        After(
            "printf '#include <tensorlend.h>\\nint main(void) { return 0; }\\n' >program.c
               printf '#include <tensorlend.hpp>\\nint main() {}\\n' >program.cpp",
        ),
    ),
    (
        "docs/models.md",
        "cargo build --release -p tensorlend-runner",
        Understood("builds a release for minutes; apps/runner/tests/command.rs runs these with a model"),
    ),
    (
        "docs/internals/releases.md",
        "scripts/deb            # tensorlend_VERSION-1_ARCH.deb: daemon, tool, units, manual pages, completions",
        Understood(
            "builds a release for minutes; tests/tests/packages.rs makes and installs packages of these binaries",
        ),
    ),
    (
        "docs/internals/releases.md",
        "scripts/release                        # all parts: target/published",
        Understood(BUILDS),
    ),
    ("docs/web.md", "install -m 0600 /dev/null /etc/tensorlend/web.token", Understood(NEEDS_INSTALL)),
    ("docs/how-to/save.md", "systemctl enable tensorlend-restore@alice.service", Understood(NEEDS_MANAGER)),
    ("docs/how-to/save.md", "systemctl enable --now tensorlend-restore@alice.service", Understood(NEEDS_MANAGER)),
    (
        "docs/log.md",
        "journalctl -u tensorlendd TENSORLEND_UID=1000               # what concerns one user",
        Understood(NEEDS_MANAGER),
    ),
    (
        "docs/how-to/command-line.md",
        "tensorlend ls --larger 1GiB --older 10m",
        Understood("names a process of a client; apps/cli/tests/verbs/names.rs runs it with one"),
    ),
    (
        "docs/how-to/command-line.md",
        "tensorlend trace weights",
        Understood("follows until it is interrupted; apps/cli/tests/verbs/trace.rs runs it"),
    ),
    (
        "docs/how-to/command-line.md",
        "tensorlend doctor; tensorlend doctor --json",
        Understood("its exit status tells of the machine; apps/cli/tests/verbs/doctor.rs runs it"),
    ),
    (
        "docs/gpu-pack.md",
        "benches/gpu.sh pack gpu            # builds; prints the folder's size",
        Understood(NEEDS_GPU_PACK),
    ),
    ("docs/gpu-pack.md", "benches/gpu.sh pack gpu", Understood(NEEDS_GPU_PACK)),
    (
        "docs/install.md",
        "scripts/install              # or with options, such as: scripts/install --c --python --service",
        Understood("builds a release for minutes; tests/tests/install.rs runs it with built programs"),
    ),
    (
        "docs/service.md",
        "scripts/install --service             # as root",
        Understood("installs units; tests/tests/install.rs runs it in a system of its own"),
    ),
    (
        "docs/service.md",
        "scripts/install --service             # as the user",
        Understood("installs units for a user; tests/tests/install.rs runs it under a manager of its own"),
    ),
    (
        "docs/service.md",
        "mkdir -p ~/.config/systemd/user/tensorlendd.service.d ~/.config/tensorlend",
        Understood("continues a block above; tests/tests/install.rs runs it under a manager of its own"),
    ),
    (
        "docs/service.md",
        "systemctl status tensorlendd          # mode, size of the pool, uptime",
        Understood(NEEDS_MANAGER),
    ),
    (
        "docs/smartredis.md",
        "python -m tensorlend.smartredis program.py --its arguments",
        Understood("names a program of the reader's; bindings/python/tests/test_programs.py starts such ones"),
    ),
    (
        "examples/training/README.md",
        "cargo build --release -p tensorlend-training --bins",
        Understood(
            "builds a release and fetches data; examples/training/tests and bindings/python/tests/test_examples.py run the programs",
        ),
    ),
    (
        "docs/web.md",
        "tensorlend web                                             # http://127.0.0.1:9470/",
        Understood("serves until it is stopped; apps/web/tests and apps/cli/tests start it"),
    ),
    (
        "bindings/python/README.md",
        "pip install ./bindings/python          # from a clone; needs Rust (https://rustup.rs) and a C compiler",
        Understood(BUILDS),
    ),
    (
        "examples/camera/README.md",
        "scripts/install --c --python                 # as root, or with the variables that it prints",
        Understood("installs; bindings/python/tests/test_examples.py runs the programs"),
    ),
    (
        "examples/smartredis/README.md",
        "SSDB=127.0.0.1:6379 SR_DB_TYPE=Standalone python simulation.py",
        Understood("needs a Redis server; bindings/python/tests/test_examples.py runs the program"),
    ),
    (
        "docs/smartredis.md",
        "scripts/install --c --prefix /opt/tensorlend",
        Understood("installs; tests/tests/capi/smartredis.rs builds the library in this way"),
    ),
    (
        "examples/smartredis/README.md",
        "cmake -S examples/smartredis -B build/solver -DCMAKE_PREFIX_PATH=/opt/tensorlend && cmake --build build/solver",
        Understood(
            "needs gfortran and an installed library; tests/tests/capi/smartredis.rs builds and runs the solver",
        ),
    ),
    (
        "examples/smartredis/README.md",
        "pip install ./bindings/python             # from a clone of this repository",
        Understood("installs; bindings/python/tests/test_examples.py runs the program"),
    ),
];

/// Blocks that another test uses: page, language, that test.
pub const ELSEWHERE: &[(&str, &str, &str)] = &[
    ("README.md", "rust", "libclient/src/lib.rs"),
    ("docs/models.md", "rust", "apps/model/src/lib.rs"),
    ("docs/", "python", "bindings/python/tests/test_docs.py"),
    ("docs/c.md", "c", "tests/tests/capi/guide.rs"),
    ("docs/c.md", "cpp", "tests/tests/capi/guide.rs"),
    ("docs/smartredis.md", "cpp", "tests/tests/capi/smartredis.rs"),
    ("docs/smartredis.md", "fortran", "tests/tests/capi/smartredis.rs"),
    // Lines of a node, which needs ROS 2.
    ("docs/migrate/ros2.md", "cpp", "tests/tests/capi.rs"),
    ("docs/migrate/ros2.md", "cmake", "tests/tests/capi.rs"),
    // Conversion of other projects' files, which are not in this repository.
    ("examples/data/README.md", "python", "examples/data/README.md"),
];

/// Files that the page mentions.
const SOME_FILES: &str = r#"mkdir frames
cp ../tensorlend/examples/data/china.jpg frames/0.jpg
/usr/bin/python3 - <<'END'
import json, struct
head = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
open("model.safetensors", "wb").write(struct.pack("<Q", len(head)) + head + struct.pack("<ff", 1, 2))
END"#;
