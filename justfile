# What can be done here.
default:
    @just --list

# Build the library, the daemon and the command line tool.
build:
    cargo build --release

# Run every test, as CI does.
test:
    ./scripts/test

# What to run after each change: format, lints, unit and core tests.
quick:
    cargo fmt --all --check
    cargo clippy --workspace --exclude tensorlend-gateway --exclude tensorlend-runner --exclude tensorlend-benches --all-targets -- -D warnings
    cargo nextest run -p tensorlend-layout -p tensorlend-os -p tensorlend-daemon -p tensorlend -p tensorlend-model -p tensorlend-capi --lib

# Real tensors between processes, beside what serializing and copying cost.
demo *ARGS:
    cargo demo {{ ARGS }}

# Model-check the shared memory protocols.
loom preemptions="3":
    RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS={{ preemptions }} CARGO_PROFILE_RELEASE_LTO=off \
        cargo test --release -p tensorlend-layout --test loom --target-dir target/loom

# Build the API documentation; warnings are errors.
docs:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --lib

# Build the manual: target/book/html/index.html.
book:
    cargo build --workspace --bins
    scripts/book

# Write docs/layout.md, the record of the layout and docs/configuration.md anew from the code.
layout:
    TENSORLEND_UPDATE_DOCS=1 cargo test -p tensorlend-layout --test layout_doc --test layouts
    TENSORLEND_UPDATE_DOCS=1 cargo test -p tensorlend-daemon --test configuration

# Print the header for C, which scripts/capi installs.
header:
    @cargo run --locked --quiet -p tensorlend-header

# Add new items to the list of the interface on which compiled C programs depend.
abi:
    TENSORLEND_UPDATE_DOCS=1 cargo test -p tensorlend-tests --test capi the_interface

# Check licences, bans, sources and advisories of the dependencies.
deny:
    cargo deny check

# Check formatting and lints; warnings are errors.
lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings
    cargo clippy -p tensorlend --all-targets --all-features -- -D warnings

# Format the code.
fmt:
    cargo fmt --all

# Run the benchmarks.
bench *ARGS:
    cargo bench -p tensorlend-benches {{ ARGS }}
