"""The Helm chart, checked by helm and the schemas of Kubernetes, and its documented properties."""

import hashlib
import subprocess
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import jsonschema
import kubernetes_validate
import pytest
import yaml
from harness.paths import ROOT

from admin.common.version import sluice_version
from admin.config.sources import Flags, load
from admin.run.composition import compose

CHART: Final = ROOT / "deploy" / "helm" / "sluice"
EXAMPLES_FOLDER: Final = ROOT / "deploy" / "helm" / "examples"
# The oldest supported version that the validator knows, and the newest.
KUBERNETES: Final = ("1.31", kubernetes_validate.latest_version())

BROKER: Final = ("--set", "broker.nameServers=name-server:9876")
EVERYTHING: Final = (
    *BROKER,
    *("--set", "serviceMonitor.enabled=true,prometheusRule.enabled=true,dashboard.enabled=true"),
    *("--set", "admin.tlsSecret=sluice-tls,image.pullSecrets={registry},labels.team=mq,state.storageClass=fast"),
    *("--set", "broker.storage.storageClass=fast,broker.nodeSelector.disk=ssd,env[0].name=SLUICE_LOG_LEVEL"),
    *("--set", "env[0].value=debug,networkPolicy.clients[0].podSelector.matchLabels.app=shop"),
    *("--set", "networkPolicy.egress[0].ports[0].port=9876,networkPolicy.egress[0].ports[0].protocol=TCP"),
    *("--set", "listeners[0].name=main,listeners[0].port=10911,listeners[0].tlsSecret=client-tls"),
    *("--set", "networkPolicy.replicas[0].ipBlock.cidr=10.2.0.0/16,podDisruptionBudget.selector.tier=brokers"),
)
EXISTING: Final = ("-f", str(EXAMPLES_FOLDER / "deployment-a" / "values.yaml"))
RABBITMQ: Final = ("-f", str(EXAMPLES_FOLDER / "rabbitmq" / "values.yaml"))
ROCKETMQ_PROXY: Final = ("-f", str(EXAMPLES_FOLDER / "rocketmq-proxy" / "values.yaml"))
VALKEY: Final = EXAMPLES_FOLDER / "valkey"
VARIANTS: Final[Mapping[str, tuple[str, ...]]] = {
    "usual": BROKER,
    "everything": EVERYTHING,
    "in memory": (*BROKER, "--set", "state.persistent=false,tokens.existingSecret=mine,networkPolicy.enabled=false"),
    "ipv6": (*BROKER, "--set", "ipv6=true,podDisruptionBudget.enabled=false"),
    "fleet": (*BROKER, "-f", str(VALKEY / "values.yaml")),
    "existing broker": EXISTING,
    "existing RabbitMQ": RABBITMQ,
    "existing RocketMQ Proxy": ROCKETMQ_PROXY,
    "existing broker, patched": (*EXISTING, "--set", "existing.patch=true,state.existingClaim=kept"),
}
Helm = Callable[..., subprocess.CompletedProcess[str]]
Render = Callable[..., list[Any]]


def one(objects: list[Any], kind: str, name: str = "") -> Any:
    (found,) = (each for each in objects if each["kind"] == kind and each["metadata"]["name"].endswith(name))
    return found


def pod(objects: list[Any]) -> Any:
    return one(objects, "StatefulSet")["spec"]["template"]["spec"]


def sidecar(objects: list[Any]) -> Any:
    (found,) = pod(objects)["initContainers"]
    return found


@pytest.fixture(scope="module")
def usual(render: Render) -> list[Any]:
    return render(*BROKER)


# The patch is not an object, and helm cannot render it.
@pytest.mark.parametrize("variant", [name for name in VARIANTS if not name.endswith("patched")])
def test_helm_finds_nothing_wrong(helm: Helm, variant: str) -> None:
    arguments = VARIANTS[variant]
    done = helm("lint", "--strict", "--kube-version", "1.31.0", CHART, *arguments)
    assert done.returncode == 0, done.stdout
    assert "1 chart(s) linted, 0 chart(s) failed" in done.stdout
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("arguments", VARIANTS.values(), ids=VARIANTS)
def test_kubernetes_would_take_it(render: Render, arguments: tuple[str, ...], definitions: dict[str, Any]) -> None:
    objects = render(*arguments)
    # The object to be patched is incomplete. The patched one is validated below.
    whole = [each for each in objects if each["kind"] != "StatefulSet" or "selector" in each["spec"]]
    assert len(whole) >= 4
    for each in whole:
        if each["kind"] in definitions:
            jsonschema.validate(each, definitions[each["kind"]])
        else:
            for version in KUBERNETES:
                kubernetes_validate.validate(each, version, strict=True)


def test_the_valkey_of_a_fleet_has_the_names_and_rights_that_its_members_expect(render: Render) -> None:
    objects = list(yaml.safe_load_all((VALKEY / "valkey.yaml").read_text(encoding="utf-8")))
    for each in objects:
        for version in KUBERNETES:
            kubernetes_validate.validate(each, version, strict=True)
    values = yaml.safe_load((VALKEY / "values.yaml").read_text(encoding="utf-8"))
    fleet = settings(render(*VARIANTS["fleet"]))["fleet"]
    service, secret = one(objects, "Service"), one(objects, "Secret")
    assert fleet["url"] == f"redis://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    (password,) = (each["valueFrom"]["secretKeyRef"] for each in values["env"])
    assert (secret["metadata"]["name"], password["key"] in secret["stringData"]) == (password["name"], True)
    rights = (ROOT / "docs" / "fleet.md").read_text(encoding="utf-8")
    user = next(line for line in secret["stringData"]["users.acl"].splitlines() if line.startswith("user sluice"))
    assert user.replace("change-me", "PASSWORD") in rights
    labels = one(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert values["networkPolicy"]["egress"][0]["to"][0]["podSelector"]["matchLabels"] == labels


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ("broker.nameServer=a:9876", "nameServer"),
        ("admin.port=0", "admin"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("listeners[0].name=UPPER,listeners[0].port=1", "listeners"),
        ("broker.create=false", "existing.selector: give the labels of the broker's pods"),
        ("existing.patch=true", "existing.patch: requires broker.create=false"),
        ("broker.nameServers=", "broker.nameServers: give the name servers"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(helm: Helm, wrong: str, complaint: str) -> None:
    done = helm("template", "mq", CHART, "--kube-version", "1.31.0", *BROKER, "--set", wrong)
    assert done.returncode != 0
    assert complaint in done.stderr


def test_older_clusters_without_native_sidecars_are_refused(helm: Helm) -> None:
    assert "incompatible" in helm("template", "mq", CHART, "--kube-version", "1.28.0", *BROKER).stderr
    assert helm("template", "mq", CHART, "--kube-version", "1.29.0", *BROKER).returncode == 0


def settings(objects: list[Any]) -> Any:
    return tomllib.loads(one(objects, "ConfigMap", "sluice")["data"]["sluice.toml"])


def token_secret(objects: list[Any]) -> Any:
    (volume,) = (each for each in pod(objects)["volumes"] if each["name"] == "sluice-tokens")
    return volume["secret"]["secretName"]


def credentials(objects: list[Any]) -> Any:
    (endpoint,) = one(objects, "ServiceMonitor")["spec"]["endpoints"]
    return endpoint["authorization"]["credentials"]


def state_folder(objects: list[Any]) -> str:
    """Return the mount path of the claim with the state, if there is one."""
    claims = {each["metadata"]["name"] for each in one(objects, "StatefulSet")["spec"]["volumeClaimTemplates"]}
    mounts = (each for each in sidecar(objects)["volumeMounts"] if each["name"] in claims)
    return "".join(each["mountPath"] for each in mounts)


@pytest.mark.parametrize(
    ("values", "read", "expected"),
    [
        ("graceSeconds=25", lambda objects: settings(objects)["grace_s"], 25),
        ("graceSeconds=25", lambda objects: pod(objects)["terminationGracePeriodSeconds"], 60),
        ("ipv6=false", lambda objects: settings(objects)["spool"], {"max_disk_bytes": 4 * 1024**3}),
        ("state.spoolBytes=1000000000", lambda objects: settings(objects)["spool"], {"max_disk_bytes": 10**9}),
        ('config=[spool]\ndir = "off"', lambda objects: settings(objects)["spool"], {"dir": "off"}),
        ("tokens.existingSecret=mine", token_secret, "mine"),
        ("tokens.existingSecret=mine", lambda objects: [each for each in objects if each["kind"] == "Secret"], []),
        (
            "tokens.existingSecret=mine,serviceMonitor.enabled=true",
            credentials,
            {"name": "mine", "key": "metrics-token"},
        ),
        # A pod's address changes with each restart, and the usual folder is named after it.
        ("ipv6=false", lambda objects: settings(objects)["state_dir"], "/var/lib/sluice/state"),
        ("ipv6=false", state_folder, "/var/lib/sluice"),
        ("state.persistent=false", state_folder, ""),
    ],
)
def test_a_value_is_where_it_is_looked_for(
    render: Render, values: str, read: Callable[[list[Any]], object], expected: object
) -> None:
    assert read(render(*BROKER, "--set", values)) == expected


def test_sluice_is_a_native_sidecar_that_listens_before_the_broker_starts(usual: list[Any]) -> None:
    assert sidecar(usual)["restartPolicy"] == "Always"
    # Readiness requires the broker, so the broker must not wait for it.
    assert sidecar(usual)["startupProbe"]["httpGet"] == {"path": "/healthz", "port": "sluice-admin"}
    assert sidecar(usual)["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert {port["name"] for port in sidecar(usual)["ports"]} >= {"sluice-admin"}
    assert all(len(port["name"]) <= 15 for port in sidecar(usual)["ports"])


@pytest.mark.parametrize("variant", ["usual", "everything"])
def test_container_has_no_unneeded_privileges(render: Render, variant: str) -> None:
    objects = render(*VARIANTS[variant])
    for container in (sidecar(objects), one(objects, "Pod")["spec"]["containers"][0]):
        context = container["securityContext"]
        assert context["runAsNonRoot"]
        assert context["runAsUser"] == 10001
        assert context["readOnlyRootFilesystem"]
        assert not context["allowPrivilegeEscalation"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert {"memory"} <= set(container["resources"]["limits"])
        assert container["image"].endswith(f":{sluice_version()}")
    assert pod(objects)["automountServiceAccountToken"] is False


SETTINGS: Final = ("--set-string", 'listeners[0].settings=exempt = ["10.2.0.0/16"]')


@pytest.mark.parametrize(
    ("arguments", "address", "warning"),
    [
        (BROKER, "10.1.2.3", None),
        (
            (*BROKER, *SETTINGS, "--set", "ipv6=true,listeners[0].name=main,listeners[0].port=10911"),
            "2001:db8::7",
            None,
        ),
        ((*BROKER, "--set", "limiting=false"), "10.1.2.3", "limiting = false, so all requests pass"),
        (EXISTING, "10.1.2.3", 'every limit has action = "shadow", so requests are counted but never refused'),
        (RABBITMQ, "10.1.2.3", 'every limit has action = "shadow", so requests are counted but never refused'),
    ],
    ids=["usual", "ipv6, and settings of a listener", "not limiting", "existing broker", "existing RabbitMQ"],
)
def test_the_rendered_configuration_is_valid(
    render: Render, tmp_path: Path, arguments: tuple[str, ...], address: str, warning: str | None
) -> None:
    objects = render(*arguments)
    tokens, file = tmp_path / "tokens", tmp_path / "sluice.toml"
    tokens.write_text(one(objects, "Secret")["stringData"]["tokens"], encoding="utf-8")
    text = one(objects, "ConfigMap", "sluice")["data"]["sluice.toml"]
    file.write_text(text.replace("/etc/sluice-tokens/tokens", str(tokens)), encoding="utf-8")
    plan = compose(load(str(file), {"POD_IP": address}, Flags()))
    assert {listener.settings.listen.host for listener in plan.listeners} == {address}
    assert {listener.settings.broker.host for listener in plan.listeners} == {"127.0.0.1"}
    exempt = [str(network) for network in plan.listeners[0].settings.exempt]
    assert exempt == (["10.2.0.0/16"] if SETTINGS[1] in arguments else [])
    # That is usual within a cluster's network. A certificate removes the warning.
    (clear,) = (line for line in plan.warnings() if "unencrypted" in line)
    assert {*plan.warnings()} - {clear} == ({warning} if warning else set())


@pytest.mark.parametrize(("settings", "word"), [("", "require"), ('tls = "accept"', "accept")])
def test_a_listeners_certificate_is_where_the_configuration_looks_for_it(
    render: Render, settings: str, word: str
) -> None:
    arguments = ("listeners[0].name=main,listeners[0].port=10911,listeners[0].tlsSecret=client-tls",)
    objects = render(*BROKER, "--set", *arguments, "--set-string", f"listeners[0].settings={settings}")
    (listener,) = tomllib.loads(one(objects, "ConfigMap", "sluice")["data"]["sluice.toml"])["listeners"]
    mounts = {each["mountPath"]: each["name"] for each in sidecar(objects)["volumeMounts"]}
    volumes = {each["name"]: each for each in pod(objects)["volumes"]}
    assert listener["tls"] == word
    for key, name in (("tls_certificate_file", "tls.crt"), ("tls_key_file", "tls.key")):
        folder, _, file = listener[key].rpartition("/")
        assert file == name
        assert volumes[mounts[folder]]["secret"] == {"secretName": "client-tls"}


def test_a_changed_limit_or_token_restarts_nothing(render: Render, usual: list[Any]) -> None:
    changed = render(*BROKER, "--set", "config=[defaults.topic]\nrate = 7\n")
    assert one(changed, "ConfigMap", "sluice") != one(usual, "ConfigMap", "sluice")
    assert one(changed, "StatefulSet") == one(usual, "StatefulSet")
    assert "reload_on_change = true" in one(changed, "ConfigMap", "sluice")["data"]["sluice.toml"]
    # A subPath mount is never updated.
    assert not [mount for mount in sidecar(usual)["volumeMounts"] if "subPath" in mount]


def test_sluice_is_given_digests_and_operators_the_tokens(usual: list[Any]) -> None:
    data = one(usual, "Secret")["stringData"]
    lines = [line.split() for line in data["tokens"].splitlines()]
    assert lines == [
        ["operator", "write", f"sha256:{_digest(data['operator-token'])}"],
        ["prometheus", "read", f"sha256:{_digest(data['metrics-token'])}"],
    ]
    (volume,) = (each for each in pod(usual)["volumes"] if each["name"] == "sluice-tokens")
    assert volume["secret"]["items"] == [{"key": "tokens", "path": "tokens"}]


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def test_the_broker_hides_behind_it(usual: list[Any]) -> None:
    text = one(usual, "ConfigMap", "broker")["data"]["broker.conf"]
    settings = dict(line.split(" = ", 1) for line in text.splitlines())
    assert (settings["bindAddress"], settings["listenPort"]) == ("127.0.0.1", "10911")
    (broker,) = pod(usual)["containers"]
    assert "brokerIP1 = $POD_IP" in broker["args"][0]
    for probe in ("startupProbe", "livenessProbe"):
        assert broker[probe]["exec"]["command"][-1] == "exec 3<>/dev/tcp/127.0.0.1/10911"


def test_the_network_policy_admits_clients_replicas_and_scrapers(render: Render, usual: list[Any]) -> None:
    clients, replicas, admin = one(usual, "NetworkPolicy")["spec"]["ingress"]
    assert ([port["port"] for port in clients["ports"]], "from" in clients) == ([10911, 10909], False)
    assert [port["port"] for port in replicas["ports"]] == [10912]
    assert [port["port"] for port in admin["ports"]] == [9870]
    assert admin["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    narrow = one(render(*EVERYTHING), "NetworkPolicy")["spec"]
    assert narrow["ingress"][0]["from"] == [{"podSelector": {"matchLabels": {"app": "shop"}}}]
    assert narrow["policyTypes"] == ["Ingress", "Egress"]


def test_prometheus_finds_it_and_is_let_in(render: Render) -> None:
    objects = render(*EVERYTHING)
    monitor = one(objects, "ServiceMonitor")["spec"]
    service = one(objects, "Service", "admin")
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert endpoint["scheme"] == "https"
    credentials = endpoint["authorization"]["credentials"]
    assert credentials["key"] in one(objects, "Secret", credentials["name"])["stringData"]
    # The rules select jobs with this beginning.
    assert service["metadata"]["labels"][monitor["jobLabel"]] == "sluice"


def test_rules_and_dashboard_are_those_that_are_tested(render: Render) -> None:
    objects = render(*EVERYTHING)
    groups = [
        group
        for file in ("recording.yaml", "alerts.yaml")
        for group in yaml.safe_load((ROOT / "deploy" / "prometheus" / file).read_text(encoding="utf-8"))["groups"]
    ]
    assert one(objects, "PrometheusRule")["spec"] == {"groups": groups}
    dashboard = (ROOT / "deploy" / "grafana" / "sluice.json").read_text(encoding="utf-8")
    assert one(objects, "ConfigMap", "dashboard")["data"]["sluice.json"].strip() == dashboard.strip()


def _merged(old: Any, patch: Any) -> Any:
    """Merge like `kubectl patch --type strategic` for this patch: lists of named items by name."""
    if isinstance(old, dict) and isinstance(patch, dict):
        return {key: _merged(old.get(key), patch[key]) if key in patch else old[key] for key in {**old, **patch}}
    if isinstance(old, list) and isinstance(patch, list) and all(isinstance(each, dict) for each in (*old, *patch)):
        names = [each["name"] for each in (*old, *patch)]
        by_name = {each["name"]: each for each in old}
        for each in patch:
            by_name[each["name"]] = _merged(by_name.get(each["name"]), each)
        return [by_name[name] for name in dict.fromkeys(names)]
    return patch


def _documents(file: Path) -> list[Any]:
    return list(yaml.safe_load_all(file.read_text(encoding="utf-8")))


class Example(NamedTuple):
    """An existing broker, and the patch that puts Sluice in front of it."""

    folder: str
    namespace: str
    workload: str
    conf: str
    conf_object: str
    line: str

    def path(self, name: str) -> Path:
        return EXAMPLES_FOLDER / self.folder / name


EXAMPLES: Final = (
    Example("deployment-a", "rocketmq", "broker-a", "broker.conf", "broker-conf.yaml", "bindAddress = 127.0.0.1"),
    Example(
        *("rabbitmq", "rabbitmq", "rabbitmq", "rabbitmq.conf", "rabbitmq-conf.yaml"), "listeners.tcp.1 = 127.0.0.1:5672"
    ),
    Example(*("rocketmq-proxy", "rocketmq", "proxy", "rmq-proxy.json", "proxy-conf.yaml"), '  "grpcServerPort": 18081'),
)


@pytest.fixture(scope="module", params=EXAMPLES, ids=lambda example: example.folder)
def example(request: pytest.FixtureRequest) -> Example:
    found: Example = request.param
    return found


@pytest.fixture(scope="module")
def patch(helm: Helm, example: Example) -> Any:
    """The output of README's third command."""
    done = helm(
        *("template", "sluice", CHART, "-n", example.namespace, "--kube-version", "1.31.0"),
        *("-f", example.path("values.yaml"), "--set", "existing.patch=true", "--show-only", "templates/patch.yaml"),
    )
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(done.stdout)


def test_the_sidecar_is_put_into_a_broker_that_is_there(patch: Any, example: Example) -> None:
    before = _documents(example.path("before.yaml"))
    old = one(before, patch["kind"])
    assert (patch["kind"], patch["metadata"]) == (old["kind"], old["metadata"])
    new = _merged(old, patch)
    for version in KUBERNETES:
        for each in (*before, *_documents(example.path(example.conf_object)), new):
            kubernetes_validate.validate(each, version, strict=True)
    was, is_now = old["spec"]["template"]["spec"], new["spec"]["template"]["spec"]
    # The broker's own container, its store, and the selectors of its pods are unchanged.
    assert is_now["containers"] == was["containers"]
    assert {key: value for key, value in new["spec"].items() if key != "template"} == {
        key: value for key, value in old["spec"].items() if key != "template"
    }
    assert [each["name"] for each in is_now["initContainers"]] == ["sluice"]
    mounts = {mount["name"] for mount in is_now["initContainers"][0]["volumeMounts"]}
    assert mounts <= {volume["name"] for volume in is_now["volumes"]}
    (conf,) = (volume for volume in is_now["volumes"] if volume["name"] == "conf")
    assert conf == {"name": "conf", "configMap": {"name": f"{example.workload}-behind-sluice"}}
