"""Where deployments are served: the cluster where its file says so, else this machine."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.backends.kubernetes.golden import SITE
from tests.unit.backends.kubernetes.serving.fake_serving import SITE as SERVED
from tests.unit.backends.kubernetes.site_api import kubeconfig
from urllib3 import PoolManager

import muster
from muster.backends.choose import open_place
from muster.backends.kubernetes.api.access import Access
from muster.backends.kubernetes.cluster_file import ClusterSettings
from muster.backends.kubernetes.place import NamedCluster
from muster.backends.kubernetes.site import ClusterSite
from muster.core.settings import Settings


@pytest.mark.parametrize(
    ("site", "why"),
    [
        (SITE, ""),
        (SERVED, ""),
        (replace(SERVED, gateway="", serving_url=""), "through no Gateway"),
    ],
    ids=["here", "behind a gateway", "behind a service"],
)
def test_where_deployments_are_served(tmp_path: Path, site: ClusterSite, why: str) -> None:
    settings = Settings(home=tmp_path / "home", cache=tmp_path / "cache")
    written = ClusterSettings(site=site, token="t", store_url=site.store_url)
    access = Access(host="https://127.0.0.1:1", pool=PoolManager(), headers=dict)
    with closing(open_place(settings, cluster=lambda: NamedCluster(written, lambda: access))) as place:
        deployments = place.deployments
        assert why in deployments.limits.only_whole
        assert bool(deployments.limits.only_whole) == bool(why)
        assert deployments.limits.servers == (
            ("kserve", "serve", "seldon") if site.serving else ("serve", "kserve")
        )


def test_no_other_module_asks_the_settings_which_place_it_is() -> None:
    package = Path(muster.__file__).parent
    files = (path for path in package.rglob("*.py") if "settings.cluster" in path.read_text())
    rooms = {path.relative_to(package).parts[0] for path in files}
    assert rooms == {"backends"}, "what differs between two places is a member of the Protocol Place"


def test_a_look_at_a_clusters_deployments_costs_neither_jobs_nor_a_store(tmp_path: Path) -> None:
    kubeconfig(tmp_path / "kubeconfig", "http://127.0.0.1:1")
    (tmp_path / "token").write_text("word")
    file = tmp_path / "cluster.toml"
    file.write_text(
        'namespace = "team"\nclaim = "store"\nstore_url = "http://store:8470"\nimage_prefix = "registry/ml"\n'
        'queue = "gangs"\nserving = "kserve"\ntoken_file = "token"\nkubeconfig = "kubeconfig"\n'
    )
    program = (
        "import sys; from pathlib import Path; from muster.backends.choose import open_place; "
        "from muster.core.settings import Settings; import muster.backends.releases.manual; "
        "settings = Settings(home=Path('h'), cache=Path('c'), cluster=Path(sys.argv[1]))\n"
        "assert open_place(settings).deployments.limits.servers == ('kserve', 'serve', 'seldon')\n"
        "heavy = {'kubernetes', 'httpx', 'prometheus_client', 'muster.backends.kubernetes.runner'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", program, str(file)], check=True)
