//! The section on rootless containers of docs/service.md, followed literally by a user with a range of uids.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use tensorlend_tests::container::skip_without_containers;
use tensorlend_tests::manager::workspace;
use tensorlend_tests::users::Programs;
use tensorlend_tests::{run, skip, skip_without};

/// A user whom every system has.
const USER: &str = "daemon";

#[test]
fn a_user_follows_the_page() {
    if skip_without_containers() || skip_without("newuidmap") || skip_without("newgidmap") {
        return;
    }
    let page = std::fs::read_to_string(workspace("docs/service.md")).unwrap();
    let section = page.split("\n## ").find(|section| section.starts_with("In a rootless container"));
    let block = section.expect("the page has the section").split("\n```sh\n").nth(1).expect("the section has a block");
    let block = block.split("\n```").next().unwrap();
    let programs = Programs::copy(&["tensorlendd", "tensorlend"]);
    let folder = tempfile::Builder::new().prefix("tensorlend-rootless-").tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("ranges", &format!("{USER}:200000:65536\n"));
    write("page.sh", &format!("set -eu\n{block}\n"));
    std::fs::copy(workspace("examples/data/iris.npy"), folder.path().join("iris.npy")).unwrap();
    // The machine's own ranges stay as they are.
    let script = "for file in subuid subgid; do mount --bind ranges /etc/$file; done; \
                  exec setpriv --reuid=\"$0\" --regid=\"$0\" --clear-groups sh \"$@\"";
    let in_place = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-ec", script, USER]).args(arguments);
        let path = format!("{}:{}", programs.path("").display(), std::env::var("PATH").unwrap_or_default());
        run(command.current_dir(folder.path()).env("PATH", path).env_remove("TENSORLEND_SOCKET"))
    };
    let tried = in_place(&["-c", "unshare --map-root-user --map-auto true"]);
    if !tried.status.success() {
        let why = String::from_utf8_lossy(&tried.stderr).trim().replace('\n', "; ");
        skip(&format!("no user namespace with a range of uids here: {why}"));
        return;
    }
    let done = in_place(&["page.sh"]);
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{out}\n{err}");
    // The two clients are two users, and the daemon is in system mode.
    assert!(err.contains("System mode") && err.contains("uid=1001") && err.contains("uid=1002"), "{err}");
    assert!(out.contains("weights: f64 [150, 4]"), "{out}");
    let listed = out.split("diary: f64 [150, 4]").nth(1).expect("user 1001 publishes the diary");
    assert!(!listed.contains("diary"), "user 1002 sees the name of 1001: {out}");
}
