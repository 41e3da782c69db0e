"""Storages that hold large results in tests: a folder, and an S3 server that is spoken to over HTTP."""

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
from django.core.files.base import ContentFile, File
from django.core.files.storage import InMemoryStorage
from moto.server import ThreadedMotoServer

_ACCESS = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}


class Folder:
    """A folder of the file system."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.options: dict[str, Any] = {
            "BACKEND": "django.core.files.storage.FileSystemStorage",
            "OPTIONS": {"location": str(path)},
        }

    def names(self) -> list[str]:
        """Return the names of all files."""
        return sorted(str(file.relative_to(self._path)) for file in self._path.rglob("*") if file.is_file())

    def read(self, name: str) -> bytes:
        """Return what a file holds."""
        return (self._path / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        """Put something else into a file."""
        path = self._path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def delete(self, name: str) -> None:
        """Take a file away."""
        (self._path / name).unlink()


class Bucket:
    """A bucket of an S3 server."""

    def __init__(self, url: str) -> None:
        self._name = f"results-{secrets.token_hex(4)}"  # the server's buckets are the process's
        self._client: Any = boto3.client("s3", endpoint_url=url, **_ACCESS)
        self._client.create_bucket(Bucket=self._name)
        self.options: dict[str, Any] = {
            "BACKEND": "storages.backends.s3.S3Storage",
            "OPTIONS": {
                "bucket_name": self._name,
                "endpoint_url": url,
                "access_key": _ACCESS["aws_access_key_id"],
                "secret_key": _ACCESS["aws_secret_access_key"],
                "region_name": _ACCESS["region_name"],
            },
        }

    def names(self) -> list[str]:
        """Return the names of all objects."""
        return sorted(found["Key"] for found in self._client.list_objects_v2(Bucket=self._name).get("Contents", []))

    def read(self, name: str) -> bytes:
        """Return what an object holds."""
        content: bytes = self._client.get_object(Bucket=self._name, Key=name)["Body"].read()
        return content

    def write(self, name: str, content: bytes) -> None:
        """Put something else into an object."""
        self._client.put_object(Bucket=self._name, Key=name, Body=content)

    def delete(self, name: str) -> None:
        """Take an object away."""
        self._client.delete_object(Bucket=self._name, Key=name)


@contextmanager
def bucket() -> Iterator[Bucket]:
    """Have an S3 server with a bucket."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield Bucket(f"http://{host}:{port}")
    finally:
        server.stop()


class HangingStorage(InMemoryStorage):
    """A storage that answers nobody until the test lets it."""

    may_answer = threading.Event()
    content = b"content"

    def _open(self, name: str, mode: str = "rb") -> "File[bytes]":
        self.may_answer.wait(40)
        return ContentFile(self.content)

    def _save(self, name: str, content: "File[bytes]") -> str:
        self.may_answer.wait(40)
        type(self).content = content.read()
        return name


@contextmanager
def hanging() -> Iterator[dict[str, str]]:
    """Have the options of a storage that hangs until the block ends, or the test lets it answer."""
    HangingStorage.may_answer.clear()
    HangingStorage.content = b"content"
    try:
        yield {"BACKEND": f"{__name__}.HangingStorage"}
    finally:
        HangingStorage.may_answer.set()


def storage_threads() -> int:
    """Return how many threads wait for a storage."""
    return sum(thread.name == "singleflight-storage" for thread in threading.enumerate())
