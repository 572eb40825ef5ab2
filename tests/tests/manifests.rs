//! The manifests and images of `packaging/`: their important fields, and their consistency with each other and with the
//! daemon.

use std::process::Command;
use tensorlend_tests::manager::workspace;
use tensorlend_tests::{binary, run, skip};

const PYTHON: &str = "/usr/bin/python3";

/// Returns a manifest's documents as JSON, converted by Python; `None` if there is no YAML parser.
fn looked_at(program: &str, manifest: &str) -> Option<String> {
    let file = workspace("packaging/kubernetes").join(manifest);
    if !run(Command::new(PYTHON).args(["-c", "import yaml"])).status.success() {
        skip("no reader of YAML (apt-get install python3-yaml)");
        return None;
    }
    let program = format!("import sys, yaml\ndocuments = list(yaml.safe_load_all(open(sys.argv[1])))\n{program}");
    let looked = run(Command::new(PYTHON).args(["-c", &program]).arg(&file));
    assert!(looked.status.success(), "{manifest}: {}", String::from_utf8_lossy(&looked.stderr));
    Some(String::from_utf8_lossy(&looked.stdout).into_owned())
}

#[test]
fn the_daemon_set_is_what_the_documentation_says() {
    let program = "\
by = {one['kind']: one for one in documents}
pod = by['DaemonSet']['spec']['template']['spec']
labels = by['DaemonSet']['spec']['template']['metadata']['labels']
assert by['DaemonSet']['spec']['selector']['matchLabels'].items() <= labels.items()
(daemon, store), (folder,) = pod['containers'], pod['initContainers']
user = pod['securityContext']
assert user['runAsNonRoot'] and 0 < user['runAsUser'] < 1000, 'a uid of the system, for system mode'
assert pod['hostUsers'] is True, 'uids of clients come from the kernel'
assert not pod.get('hostNetwork') and not pod.get('hostPID') and not pod.get('hostIPC')
assert daemon['securityContext']['capabilities']['drop'] == ['ALL'] and daemon['securityContext']['readOnlyRootFilesystem']
assert f\"{user['runAsUser']}\" in folder['command'] and folder['command'][-1] == '/run/tensorlend'
assert daemon['readinessProbe']['exec']['command'] == ['tensorlend', 'ping'] and 'livenessProbe' not in daemon
volumes = {one['name']: one for one in pod['volumes']}
assert all(mount['name'] in volumes for one in (daemon, folder, store) for mount in one['volumeMounts'])
assert volumes['socket']['hostPath']['path'] == '/run/tensorlend'
assert volumes['configuration']['configMap']['name'] == by['ConfigMap']['metadata']['name']
unit = {'Gi': 2 ** 30, 'Mi': 2 ** 20}
bytes = lambda text: int(text[:-2]) * unit[text[-2:]]
resources = daemon['resources']
assert resources['limits']['memory'] == resources['requests']['memory']
import tomllib
configuration = by['ConfigMap']['data']['tensorlendd.toml']
values = tomllib.loads(configuration)
assert store['command'] == ['tensorlendd', '--fd-store', values['fd_store']] and store['image'] == daemon['image']
mounts = [{mount['name']: mount['mountPath'] for mount in one['volumeMounts']} for one in (store, daemon)]
assert mounts[0]['store'] == mounts[1]['store'] and values['fd_store'].startswith(mounts[0]['store'])
assert 'socket' not in mounts[0], 'clients do not see the store'
pool = values['pool']
lent = sum(bytes(pool[key].removesuffix('B')) for key in ('bytes_max', 'sheet_bytes_max'))
assert lent + 100 * 2 ** 20 <= bytes(resources['limits']['memory']), 'the pool fits into the limit'
print(configuration, end='')
";
    let Some(configuration) = looked_at(program, "daemonset.yaml") else { return };
    check_configuration(&configuration);
}

/// The daemon accepts a configuration.
fn check_configuration(configuration: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tensorlendd.toml");
    std::fs::write(&file, configuration).unwrap();
    let checked = run(Command::new(binary("tensorlendd")).arg("--check-config").arg("--config").arg(&file));
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

#[test]
fn engines_of_vllm_and_the_fd_store_fit_the_daemon() {
    let program = "\
import json, tomllib
by = {one['kind']: one for one in documents}
configuration = by['ConfigMap']['data']['tensorlendd.toml']
values = tomllib.loads(configuration)
pod, engines = (by[kind]['spec']['template']['spec'] for kind in ('DaemonSet', 'Deployment'))
containers = {one['name']: one for one in pod['containers']}
store, daemon = containers['fd-store'], containers['daemon']
assert store['command'] == ['tensorlendd', '--fd-store', values['fd_store']] and store['image'] == daemon['image']
mounts = [{mount['name']: mount['mountPath'] for mount in one['volumeMounts']} for one in (store, daemon)]
assert mounts[0]['store'] == mounts[1]['store'] and values['fd_store'].startswith(mounts[0]['store'])
assert not any('securityContext' in one and 'runAsUser' in one['securityContext'] for one in containers.values()), 'one user'
bytes = lambda text: int(text[:-2]) * 2 ** 30 if text.endswith('Gi') else int(text[:-2]) * 2 ** 20
lent = sum(bytes(values['pool'][key].removesuffix('B')) for key in ('bytes_max', 'sheet_bytes_max'))
assert lent + 100 * 2 ** 20 <= bytes(daemon['resources']['limits']['memory']), 'the pool fits into the limit'
assert by['Deployment']['spec']['replicas'] == 2 and engines['nodeSelector'] == pod['nodeSelector'], 'one node'
(engine,) = engines['containers']
transfer = json.loads(engine['args'][engine['args'].index('--kv-transfer-config') + 1])
import re
manual = open(sys.argv[1].replace('packaging/kubernetes/vllm.yaml', 'docs/how-to/kv-cache.md')).read()
shown = json.loads(re.search(r\"--kv-transfer-config '([^']*)'\", manual)[1])
extra = [one.pop('kv_connector_extra_config') for one in (transfer, shown)]
assert transfer == shown, 'the fields of the manual'
assert bytes(extra[0]['bytes_max'].replace(' ', '').removesuffix('B')) < bytes(values['pool']['bytes_max'].removesuffix('B'))
volumes = {one['name']: one for one in engines['volumes']}
mounted = {mount['mountPath']: mount for mount in engine['volumeMounts']}
assert volumes[mounted['/run/tensorlend']['name']]['hostPath']['path'] == '/run/tensorlend'
assert mounted['/run/tensorlend']['readOnly'] and engines['securityContext']['runAsNonRoot']
assert not any(key in one for one in (pod, engines) for key in ('hostIPC', 'hostPID', 'hostNetwork'))
print(configuration, end='')
";
    let Some(configuration) = looked_at(program, "vllm.yaml") else { return };
    check_configuration(&configuration);
}

#[test]
fn a_client_pod_needs_the_folder_of_the_socket_alone() {
    let program = "\
(pod,) = documents
spec = pod['spec']
(client,), (volume,) = spec['containers'], spec['volumes']
assert volume['hostPath']['path'] == '/run/tensorlend'
(mount,) = client['volumeMounts']
assert mount['name'] == volume['name'] and mount['readOnly'] and 'subPath' not in mount, 'a folder, not the socket in it'
assert not any(key in spec for key in ('hostIPC', 'hostPID', 'hostNetwork'))
assert spec['securityContext']['runAsNonRoot'] and client['securityContext']['capabilities']['drop'] == ['ALL']
";
    let _ = looked_at(program, "client.yaml");
}

/// The images, with the uid of each as the chart has it.
const IMAGES: [(&str, u32); 4] = [("daemon", 970), ("gateway", 972), ("runner", 1000), ("client", 1000)];

#[test]
fn images_copy_what_is_there_and_their_users_are_the_charts() {
    let read = |file: &str| std::fs::read_to_string(workspace("packaging").join(file)).unwrap();
    let version = read("../Cargo.toml").lines().find_map(|line| Some(line.strip_prefix("rust-version = ")?.to_owned()));
    let rust = format!("ARG RUST=docker.io/library/rust:{}-", version.unwrap().trim_matches('"'));
    assert!(read("kubernetes/daemonset.yaml").contains("runAsUser: 970\n"));
    assert!(read("kubernetes/daemonset.yaml").contains("runAsUser: 970\n"));
    let chart = read("helm/tensorlend/values.yaml");
    for (image, uid) in IMAGES {
        let file = read(&format!("container/Containerfile.{image}"));
        assert!(file.contains(&format!("--uid {uid} ")) || file.contains(&format!("--uid {uid}\n")), "{image}");
        let copied = file.lines().filter_map(|line| line.strip_prefix("COPY ")?.split_whitespace().next());
        for path in copied.filter(|path| !path.starts_with(['-', '.']) && !path.starts_with("target/")) {
            assert!(workspace(path).exists(), "{image}: {path}");
        }
        // A build argument chooses each base image, so that it can be named by its digest.
        let bases: Vec<&str> = file.lines().filter_map(|line| line.strip_prefix("FROM ")).collect();
        assert!(bases.iter().all(|base| base.starts_with("${")), "{image}: {bases:?}");
        if image != "client" {
            // The image uses the compiler that the workspace requires.
            assert!(file.contains(&rust), "{image}");
            assert!(file.contains("TENSORLEND_LOG_FORMAT=json"), "{image}");
            let section = chart.split("\n\n").find(|section| format!("\n{section}").contains(&format!("\n{image}:\n")));
            let section = section.unwrap_or_else(|| panic!("the chart has no values of {image}"));
            assert!(section.contains(&format!("  uid: {uid}\n")), "{image}: {section}");
        }
    }
    // Docker reads another name than Podman.
    assert_eq!(std::fs::read_link(workspace(".dockerignore")).unwrap().to_str(), Some(".containerignore"));
}

/// Each line that the gateway and the runner log is a JSON object. `tests/logs.rs` tests the daemon's log.
#[test]
fn programs_log_json_where_the_images_ask_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("wrong.toml"), "[[[").unwrap();
    let cases = [
        ("tensorlend-gateway", vec!["--config", "wrong.toml"]),
        ("tensorlend-runner", vec!["--socket", "nobody-listens"]),
    ];
    for (program, arguments) in cases {
        let mut command = Command::new(binary(program));
        let done = run(command.args(arguments).current_dir(folder.path()).env("TENSORLEND_LOG_FORMAT", "json"));
        assert!(!done.status.success(), "{program}");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(!said.trim().is_empty(), "{program}");
        for line in said.lines() {
            let object = serde_json::from_str::<serde_json::Value>(line);
            assert!(object.is_ok_and(|object| object["level"] == "ERROR"), "{program}: {line}");
        }
    }
}

/// The chart installs the programs of this version.
#[test]
fn the_chart_has_the_version_of_the_programs() {
    let read = |file: &str| std::fs::read_to_string(workspace(file)).unwrap();
    let version =
        read("Cargo.toml").lines().find_map(|line| Some(line.strip_prefix("version = ")?.to_owned())).unwrap();
    let chart = read("packaging/helm/tensorlend/Chart.yaml");
    assert!(chart.contains(&format!("\nappVersion: {version}\n")), "{version}\n{chart}");
    assert!(chart.contains(&format!("\nversion: {}\n", version.trim_matches('"'))), "{version}\n{chart}");
    let schema = read("packaging/helm/tensorlend/values.schema.json");
    let schema: serde_json::Value = serde_json::from_str(&schema).unwrap();
    // Every value of the first level has a type.
    let values = read("packaging/helm/tensorlend/values.yaml");
    let keys = values.lines().filter_map(|line| line.split_once(':').filter(|(key, _)| !key.contains([' ', '#'])));
    for (key, _) in keys {
        assert!(schema["properties"][key]["type"].is_string(), "{key}");
    }
}
