//! Criterion benchmarks of tensorlend, each beside its floor. Run them with `cargo bench -p tensorlend-benches`; the
//! machine decides the figures, so compare within one run.
