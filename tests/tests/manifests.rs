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
(daemon,), (folder,) = pod['containers'], pod['initContainers']
user = pod['securityContext']
assert user['runAsNonRoot'] and 0 < user['runAsUser'] < 1000, 'a uid of the system, for system mode'
assert pod['hostUsers'] is True, 'uids of clients come from the kernel'
assert not pod.get('hostNetwork') and not pod.get('hostPID') and not pod.get('hostIPC')
assert daemon['securityContext']['capabilities']['drop'] == ['ALL'] and daemon['securityContext']['readOnlyRootFilesystem']
assert f\"{user['runAsUser']}\" in folder['command'] and folder['command'][-1] == '/run/tensorlend'
assert daemon['readinessProbe']['exec']['command'] == ['tensorlend', 'ping'] and 'livenessProbe' not in daemon
volumes = {one['name']: one for one in pod['volumes']}
assert all(mount['name'] in volumes for one in (daemon, folder) for mount in one['volumeMounts'])
assert volumes['socket']['hostPath']['path'] == '/run/tensorlend'
assert volumes['configuration']['configMap']['name'] == by['ConfigMap']['metadata']['name']
unit = {'Gi': 2 ** 30, 'Mi': 2 ** 20}
bytes = lambda text: int(text[:-2]) * unit[text[-2:]]
resources = daemon['resources']
assert resources['limits']['memory'] == resources['requests']['memory']
import tomllib
configuration = by['ConfigMap']['data']['tensorlendd.toml']
pool = tomllib.loads(configuration)['pool']
lent = sum(bytes(pool[key].removesuffix('B')) for key in ('bytes_max', 'sheet_bytes_max'))
assert lent + 100 * 2 ** 20 <= bytes(resources['limits']['memory']), 'the pool fits into the limit'
print(configuration, end='')
";
    let Some(configuration) = looked_at(program, "daemonset.yaml") else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tensorlendd.toml");
    std::fs::write(&file, configuration).unwrap();
    let checked = run(Command::new(binary("tensorlendd")).arg("--check-config").arg("--config").arg(&file));
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
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

#[test]
fn images_copy_what_is_there_and_their_user_is_the_manifests() {
    let read = |file: &str| std::fs::read_to_string(workspace("packaging").join(file)).unwrap();
    let daemon = read("container/Containerfile.daemon");
    assert!(daemon.contains("--uid 970 ") && read("kubernetes/daemonset.yaml").contains("runAsUser: 970\n"));
    let copied = daemon.lines().filter_map(|line| line.strip_prefix("COPY packaging/")?.split_whitespace().next());
    for file in copied {
        assert!(workspace("packaging").join(file).exists(), "{file}");
    }
    // The image uses the compiler that the workspace requires.
    let version = read("../Cargo.toml").lines().find_map(|line| Some(line.strip_prefix("rust-version = ")?.to_owned()));
    assert!(daemon.contains(&format!("rust:{}-", version.unwrap().trim_matches('"'))));
}
