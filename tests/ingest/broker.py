"""A broker of Kafka 4.1 (KRaft, one node), its jars and its Java fetched once into the cache."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from functools import partial
from pathlib import Path

from tests.ingest.kafka.java import kafka
from tests.ports import free_port
from tests.waiting import eventually

from muster.core.linux import die_with

USER, WORD = "muster-test", "a-word-of-the-tests"
_CLUSTER = "muster-tests-kafka-01A"
_JVM = ("-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")


class Broker:
    """One broker; it keeps its topics in `folder` through a kill.

    :param settings: more of Kafka's own, ``log.retention.ms``.
    :ivar url: where it answers in plain. `safe_url`: where it asks for :data:`USER` and :data:`WORD` (SASL PLAIN over TLS, with `pem`).
    """

    def __init__(self, folder: Path, *, pem: Path | None = None, **settings: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._ports = [free_port() for _ in range(3)]
        self.url, self.safe_url = (f"127.0.0.1:{port}" for port in self._ports[:2])
        self._process: subprocess.Popen[bytes] | None = None
        self._file = folder / "server.properties"
        self._file.write_text(
            "".join(f"{name}={value}\n" for name, value in (self._settings(pem) | settings).items())
        )

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def connection(self) -> dict[str, str]:
        """The extra of an Airflow connection to it."""
        return {"bootstrap.servers": self.url}

    def start(self) -> None:
        """Start it, and wait until it answers."""
        if not (self.folder / "data" / "meta.properties").is_file():
            self._java("kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(self._file)).wait()
        self._process = self._java("kafka.Kafka", str(self._file))
        eventually(self._answers)

    def stop(self) -> None:
        """Kill it: it is away from one moment to the next."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _java(self, *words: str) -> subprocess.Popen[bytes]:
        java, jars = kafka()
        with (self.folder / "broker.log").open("ab") as log:
            return subprocess.Popen(
                [java, *_JVM, "-cp", f"{jars}/*", *words],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={"PATH": os.environ["PATH"]},
                preexec_fn=partial(die_with, os.getpid()),
            )

    def _settings(self, pem: Path | None) -> dict[str, str]:
        plain, safe, controller = self._ports
        found = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{plain},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL",
            "log.dirs": str(self.folder / "data"),
            "auto.create.topics.enable": "false",
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "log.retention.ms": "-1",
            "log.cleaner.enable": "false",
            # One that was killed may come back once its controller takes it for gone: nine seconds, unless it is told otherwise.
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
        }
        if pem is not None:
            found["listeners"] += f",SASL_SSL://127.0.0.1:{safe}"
            login = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{WORD}";'
            found |= {
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.sasl_ssl.plain.sasl.jaas.config": login,
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(pem),
            }
        return found

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "broker.log").read_text()[-3000:]
        try:
            socket.create_connection(("127.0.0.1", self._ports[0]), timeout=1).close()
        except OSError:
            return False
        return True
