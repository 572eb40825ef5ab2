"""The dashboards for Grafana: a Prometheus reads two machines, and each query of each panel finds both."""

import contextlib
import http.server
import json
import pathlib
import re
import shutil
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request

import numpy as np
import pytest
from tool import command
from waiting import eventually

import tensorlend
from tensorlend.kvcache.counters import Counters, GroupBytes, Summary

PACKAGING = pathlib.Path(__file__).parents[3] / "packaging" / "grafana"
#: Seconds until everything has been scraped, also on a busy machine.
PATIENCE_S = 300
#: Without a device, and without limits for a user or a namespace, a daemon has no such series.
WITHOUT_SERIES = {"tensorlend_device_bytes", "tensorlend_device_max_bytes", "tensorlend_uid_max_bytes", "tensorlend_namespace_max_bytes"}
#: Requests to this machine never go through a proxy.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ended(process: subprocess.Popen) -> None:
    """Ends a process, and waits for its end."""
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


@pytest.fixture
def program() -> str:
    """The program of Prometheus."""
    found = shutil.which("prometheus")
    if found is None:
        pytest.skip("prometheus is not installed (apt-get install prometheus)")
    return found


@pytest.fixture
def stack():
    """Ends what a test has started, in any case."""
    with contextlib.ExitStack() as stack:
        yield stack


def fetch(url: str) -> str:
    with OPENER.open(url, timeout=60) as response:
        return response.read().decode()


def dashboard(name: str) -> dict:
    path = PACKAGING / name
    if not path.is_file():
        pytest.skip("the dashboards are not here: the tests run without the sources")
    return json.loads(path.read_text())


def queries(panels: list[dict]) -> list[str]:
    found = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    return found + [query for panel in panels for query in queries(panel.get("panels", []))]


def filled_in(query: str, instances: str) -> str:
    """The query as Grafana sends it, with all namespaces."""
    return query.replace("$instance", instances).replace("$namespace", ".*").replace("$__rate_interval", "1m")


class Prometheus:
    """A Prometheus that reads these machines (``host:port``) every 2 seconds."""

    def __init__(self, program: str, folder: pathlib.Path, targets: list[str], stack: contextlib.ExitStack) -> None:
        config = {
            "global": {"scrape_interval": "2s", "scrape_timeout": "2s"},
            "scrape_configs": [{"job_name": "tensorlend", "static_configs": [{"targets": targets}]}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))
        self.log = folder / "prometheus.log"
        options = ["--config.file=prometheus.yml", "--storage.tsdb.path=data", "--web.listen-address=127.0.0.1:0", "--log.format=json"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([program, *options], cwd=folder, stdout=log, stderr=log)
        stack.callback(ended, self.process)
        self.address = ""

    def is_up(self) -> bool:
        for line in self.log.read_text().splitlines():
            found = re.search(r'"address":"(127\.0\.0\.1:(?!0")\d+)"', line)
            if found:
                self.address = found[1]
        assert self.process.poll() is None, self.log.read_text()
        try:
            return bool(self.address and fetch(f"http://{self.address}/-/ready"))
        except (urllib.error.URLError, TimeoutError):
            return False  # It still starts.

    def query(self, text: str) -> list[dict[str, str]]:
        """The labels of each series."""
        url = f"http://{self.address}/api/v1/query?{urllib.parse.urlencode({'query': text})}"
        try:
            found = json.loads(fetch(url))
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{text}: {error.read().decode()}") from None
        assert found["status"] == "success", found
        return [series["metric"] for series in found["data"]["result"]]


def check(prometheus: Prometheus, name: str, targets: list[str], page: str) -> None:
    """Every query finds both machines, and one machine where one is chosen."""
    eventually(prometheus.log.read_text, prometheus.is_up, 0.2)
    # Some queries hide a zero. The machines' series are zero here.
    every = [query.removesuffix(" > 0") for query in queries(dashboard(name)["panels"])]
    known = set(re.findall(r"^(tensorlend_\w+)", page, re.MULTILINE))
    absent = {metric for query in every for metric in re.findall(r"tensorlend_\w+", query)} - known
    assert absent <= WITHOUT_SERIES, f"{absent} have no series:\n{page}"
    both, one = "|".join(map(re.escape, targets)), re.escape(targets[0])

    def found(query: str, chosen: str) -> set[str]:
        # A backslash in a string of PromQL is written twice, as Grafana does.
        return {labels.get("instance", "no label") for labels in prometheus.query(filled_in(query, f"({chosen})".replace("\\", "\\\\")))}

    for query in every:
        if not absent & set(re.findall(r"tensorlend_\w+", query)):
            # A machine that responds too late is missing until Prometheus reads it again.
            for chosen, instances in ((both, set(targets)), (one, {targets[0]})):
                eventually(
                    lambda query=query, chosen=chosen: f"{query} of {chosen}: {found(query, chosen)}\n{page}",
                    lambda query=query, chosen=chosen, instances=instances: found(query, chosen) == instances,
                    0.2,
                )


def start_web(broker: tensorlend.Embedded, stack: contextlib.ExitStack) -> str:
    """Starts the dashboard's server of a broker, and returns its ``host:port``."""
    options = ["--socket", str(broker.address), "web", "--listen", "127.0.0.1:0", "--interval", "0.5"]
    web = subprocess.Popen([*command(), *options], stdout=subprocess.PIPE, text=True)
    stack.callback(ended, web)
    assert web.stdout is not None
    line = web.stdout.readline()
    assert line, f"tensorlend web ended with status {web.wait()}"
    return urllib.parse.urlsplit(line.strip()).netloc


def test_the_daemons_dashboard_shows_two_machines(tmp_path, program, stack):
    dashboard("tensorlend.json")
    targets = []
    for _ in range(2):
        broker = stack.enter_context(tensorlend.embedded())
        client = stack.enter_context(broker.connect(label="producer"))
        reader = stack.enter_context(broker.connect(label="reader"))
        client.put("weights", np.arange(1000.0))
        # The lease keeps this value.
        stack.enter_context(reader.get("weights"))
        client.put("weights", np.arange(1000.0))
        frames = stack.enter_context(client.stream("frames", capacity=4, policy="drop-oldest"))
        stack.enter_context(reader.subscribe("frames"))
        for _ in range(10):
            frames.send(np.arange(10.0))
        targets.append(start_web(broker, stack))
    prometheus = Prometheus(program, tmp_path, targets, stack)
    check(prometheus, "tensorlend.json", targets, fetch(f"http://{targets[0]}/metrics"))


def test_the_dashboard_of_a_kv_cache_shows_two_machines(tmp_path, program, stack):
    dashboard("kv-cache.json")
    summary = Summary(Counters(queries=5, hits=4), {"0": GroupBytes("small", "float16", 2, 4096)}, stores=1)

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            summary.counters.queries += 2
            summary.counters.hits += 1
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(summary.prometheus().encode())

        def log_message(self, *_: object) -> None:
            pass

    targets = []
    for _ in range(2):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
        stack.callback(server.server_close)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stack.callback(server.shutdown)
        targets.append(f"127.0.0.1:{server.server_port}")
    prometheus = Prometheus(program, tmp_path, targets, stack)
    check(prometheus, "kv-cache.json", targets, summary.prometheus())
