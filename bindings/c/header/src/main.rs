//! Prints `tensorlend.h`: `scripts/capi` installs it.

fn main() {
    print!("{}", tensorlend_header::text());
}
