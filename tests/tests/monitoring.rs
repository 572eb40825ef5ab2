//! The alerts for Prometheus, tested by Prometheus' own tool.

use std::process::Command;
use tensorlend_tests::manager::workspace;
use tensorlend_tests::{run, skip_without};

/// Each alert fires for a machine with its fault, and stays silent for a healthy one.
#[test]
fn alerts_fire_for_the_machine_with_the_fault() {
    if skip_without("promtool") {
        return;
    }
    let promtool = |folder: &std::path::Path, args: &[&str]| {
        let done = run(Command::new("promtool").args(args).current_dir(folder));
        let said = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        (done.status.success(), said)
    };
    let folder = workspace("packaging/prometheus");
    let (checked, said) = promtool(&folder, &["check", "rules", "tensorlend.rules.yaml"]);
    assert!(checked, "{said}");
    let tested = ["test", "rules", "tensorlend.rules.test.yaml"];
    let (passed, said) = promtool(&folder, &tested);
    assert!(passed, "{said}");
    // The tests detect another threshold.
    let wrong = tempfile::tempdir().unwrap();
    for file in ["tensorlend.rules.yaml", "tensorlend.rules.test.yaml"] {
        let text = std::fs::read_to_string(folder.join(file))
            .unwrap()
            .replace("tensorlend_pool_max_bytes > 0.9", "tensorlend_pool_max_bytes > 0.96");
        std::fs::write(wrong.path().join(file), text).unwrap();
    }
    let (passed, said) = promtool(wrong.path(), &tested);
    assert!(!passed && said.contains("TensorlendPoolNearlyFull"), "{said}");
}

#[test]
fn the_manual_explains_every_alert() {
    let read = |path: &str| std::fs::read_to_string(workspace(path)).unwrap();
    let (rules, page) = (read("packaging/prometheus/tensorlend.rules.yaml"), read("docs/web.md"));
    let rows = || page.lines().filter(|line| line.starts_with("| `Tensorlend"));
    let alerts = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let explained: usize = rows().map(|row| row.split('|').nth(1).unwrap().split(',').count()).sum();
    assert_eq!(alerts.clone().count(), explained, "one entry for each alert");
    for alert in alerts {
        assert!(rows().any(|row| row.contains(&format!("`{alert}`"))), "{alert}");
    }
}
