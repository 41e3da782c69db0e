"""What docker-compose.yml refers to is there.

The specification's schema (checked beside this) knows the form of each entry, not whether a service that
another waits for exists, can become healthy or ever ends, nor whether a mounted file is in the checkout.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parent.parent
Service = Mapping[str, Any]


def main() -> int:
    document = YAML(typ="safe").load(ROOT / "docker-compose.yml")
    services: dict[str, Service] = document["services"]
    volumes = set(document.get("volumes", {}))
    problems = [
        f"{name}: {problem}" for name, service in services.items() for problem in faults(service, services, volumes)
    ]
    for problem in problems:
        print(f"docker-compose.yml: {problem}", file=sys.stderr)
    print(f"{len(services)} services, {len(problems)} problems")
    return 1 if problems else 0


def faults(service: Service, services: Mapping[str, Service], volumes: set[str]) -> Iterator[str]:
    yield from faults_of_dependencies(service, services)
    yield from faults_of_mounts(service, volumes)
    yield from faults_of_build(service)
    yield from faults_of_addresses(service, services)


def faults_of_dependencies(service: Service, services: Mapping[str, Service]) -> Iterator[str]:
    for name, dependency in service.get("depends_on", {}).items():
        awaited, condition = services.get(name), dependency["condition"]
        if awaited is None:
            yield f"waits for {name}, which is no service"
        elif condition == "service_healthy" and "healthcheck" not in awaited:
            yield f"waits until {name} is healthy, which has no healthcheck"
        elif condition == "service_completed_successfully" and awaited.get("restart") != "no":
            yield f"waits until {name} has ended, which restarts"


def faults_of_mounts(service: Service, volumes: set[str]) -> Iterator[str]:
    for mount in service.get("volumes", []):
        source = mount.split(":")[0]
        if source.startswith("."):
            if not (ROOT / source).exists():
                yield f"mounts {source}, which is not in the checkout"
        elif source not in volumes:
            yield f"mounts {source}, which is no volume"


def faults_of_build(service: Service) -> Iterator[str]:
    if (build := service.get("build")) and not (ROOT / build["context"] / build["dockerfile"]).is_file():
        yield f"is built from {build['dockerfile']}, which is not in the checkout"


def faults_of_addresses(service: Service, services: Mapping[str, Service]) -> Iterator[str]:
    for variable, value in service.get("environment", {}).items():
        host = urlsplit(str(value)).hostname if variable.endswith("_URL") else None
        if host and host not in services:
            yield f"{variable} names the host {host}, which is no service"


if __name__ == "__main__":
    sys.exit(main())
