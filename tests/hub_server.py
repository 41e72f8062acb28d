"""A small stand-in for the Hugging Face Hub, for tests without a network.

It keeps repositories in memory, and answers what `huggingface_hub` asks to download a snapshot and
to commit files. Private repositories need the token `hf_test`.
"""

import base64
import contextlib
import hashlib
import http.server
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from fairseq_lxsr.encoder import hub

TOKEN = "hf_test"


@dataclass
class Repository:
    """`commits` maps commits to their files; `revisions` maps branches and tags to commits."""

    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    revisions: dict[str, str] = field(default_factory=dict)

    def commit(self, files: dict[str, bytes], revision: str = "main") -> str:
        digest = hashlib.sha1(str(len(self.commits)).encode())
        for name, content in sorted(files.items()):
            digest.update(name.encode() + hashlib.sha1(content).digest())
        self.commits[digest.hexdigest()] = dict(files)
        self.revisions[revision] = digest.hexdigest()
        return digest.hexdigest()

    def resolve(self, revision: str) -> str | None:
        return revision if revision in self.commits else self.revisions.get(revision)


class HubServer(http.server.ThreadingHTTPServer):
    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, Repository] = {}
        self.requests: list[str] = []
        # Maps patterns of paths to answers with an error: status, content, headers.
        self.faults: dict[str, tuple[int, object, dict[str, str]]] = {}
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add(self, name: str, folder: Path, revision: str = "main", **extra_files: bytes) -> str:
        """Commit the files of a folder, and extra files, whose names have __ for a dot."""
        files = {}
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                files[path.relative_to(folder).as_posix()] = path.read_bytes()
        for extra_name, content in extra_files.items():
            files[extra_name.replace("__", ".")] = content
        return self.repositories.setdefault(name, Repository()).commit(files, revision)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer()

    def do_HEAD(self):
        self.answer()

    def do_POST(self):
        self.answer()

    def answer(self):
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        self.server.requests.append(f"{self.command} {path}")
        for pattern, (status, content, headers) in self.server.faults.items():
            if re.fullmatch(pattern, path):
                self.reply(status, content, **headers)
                return
        for pattern, method in ROUTES.items():
            match = re.fullmatch(pattern, path)
            if match:
                getattr(self, method)(**match.groupdict())
                return
        self.reply(404)

    def reply(self, status: int, content: object = None, **headers: str):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def has_token(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def repository(self, name: str) -> Repository | None:
        """Return the repository, or answer with an error and return None."""
        repository = self.server.repositories.get(name)
        if repository is None or (repository.private and not self.has_token()):
            self.reply(401, {"error": "no"}, X_Error_Code="RepoNotFound")
            return None
        return repository

    def commit_of(self, name: str, revision: str) -> tuple[Repository, str] | None:
        repository = self.repository(name)
        if repository is None:
            return None
        commit = repository.resolve(revision.replace("%2F", "/"))
        if commit is None:
            self.reply(404, {"error": "no"}, X_Error_Code="RevisionNotFound")
            return None
        return repository, commit

    def info(self, name: str, revision: str = "main"):
        location = self.commit_of(name, revision)
        if location:
            repository, commit = location
            files = [{"rfilename": path} for path in repository.commits[commit]]
            about = {"_id": name, "id": name, "sha": commit, "siblings": files}
            self.reply(200, about | {"private": repository.private})

    def tree(self, name: str, revision: str):
        location = self.commit_of(name, revision)
        if location:
            repository, commit = location
            rows = []
            for path, content in repository.commits[commit].items():
                oid = hashlib.sha1(content).hexdigest()
                rows.append({"type": "file", "path": path, "size": len(content), "oid": oid})
            self.reply(200, rows)

    def file(self, name: str, revision: str, path: str):
        location = self.commit_of(name, revision)
        if location:
            repository, commit = location
            content = repository.commits[commit].get(path)
            if content is None:
                self.reply(404, {"error": "no"}, X_Error_Code="EntryNotFound")
                return
            tag = f'"{hashlib.sha1(content).hexdigest()}"'
            self.reply(200, content, ETag=tag, X_Repo_Commit=commit)

    def check_card(self):
        """Apply rules of the hub's specification of cards to the front matter."""
        text = json.loads(self.body)["content"]
        card = yaml.safe_load(text.removeprefix("---\n").partition("\n---\n")[0])
        errors = []
        link = card.get("license_link", "LICENSE.md")
        if link not in ("LICENSE", "LICENSE.md") and not link.startswith("https://"):
            errors.append("license_link must be LICENSE, LICENSE.md or a URL")
        for language in card.get("language", ()):
            if not re.fullmatch("[a-z]{2,3}", language):
                errors.append(f"language {language}")
        for result in card.get("model-index", [{"results": []}])[0]["results"]:
            if not re.fullmatch(r"([\w-]+/)?[\w.-]+", result["dataset"]["type"]):
                errors.append(f"dataset.type {result['dataset']['type']}")
            if not result["task"]["type"] or not result["dataset"]["name"]:
                errors.append("task.type and dataset.name are required")
            for metric in result["metrics"]:
                if not metric["type"] or not isinstance(metric["value"], int | float):
                    errors.append(f"metric {metric}")
        messages = [{"message": message} for message in errors]
        self.reply(400 if errors else 200, {"errors": messages, "warnings": []})

    def create(self):
        about = json.loads(self.body)
        name = f"{about.get('organization') or 'me'}/{about['name']}"
        if not self.has_token():
            self.reply(401, {"error": "Invalid username or password."})
        elif name in self.server.repositories:
            self.reply(409, {"error": "exists", "url": f"{self.server.url}/{name}"})
        else:
            # The name of the field depends on the version of huggingface_hub.
            is_private = about.get("private") or about.get("visibility") == "private"
            repository = Repository(private=bool(is_private))
            repository.commit({".gitattributes": b""})
            self.server.repositories[name] = repository
            self.reply(200, {"url": f"{self.server.url}/{name}", "name": name})

    def branch(self, name: str, revision: str):
        repository = self.repository(name)
        if repository:
            repository.revisions.setdefault(revision, repository.revisions["main"])
            self.reply(200, {})

    def preupload(self, name: str, revision: str):
        if self.commit_of(name, revision):
            files = []
            for file in json.loads(self.body)["files"]:
                files.append({"path": file["path"], "uploadMode": "regular", "shouldIgnore": False})
            self.reply(200, {"files": files})

    def commit(self, name: str, revision: str):
        location = self.commit_of(name, revision)
        if location:
            repository, commit = location
            files = dict(repository.commits[commit])
            for line in self.body.splitlines():
                change = json.loads(line)
                if change["key"] == "file":
                    content = base64.b64decode(change["value"]["content"])
                    files[change["value"]["path"]] = content
                elif change["key"] == "deletedFile":
                    del files[change["value"]["path"]]
            commit = repository.commit(files, revision)
            url = f"{self.server.url}/{name}/commit/{commit}"
            self.reply(200, {"success": True, "commitOid": commit, "commitUrl": url})

    def log_message(self, *_):
        pass


NAME = r"(?P<name>[^/]+/[^/]+)"
REVISION = r"(?P<revision>[^/]+)"
ROUTES = {
    rf"/api/models/{NAME}/revision/{REVISION}": "info",
    rf"/api/models/{NAME}/tree/{REVISION}": "tree",
    rf"/api/models/{NAME}/branch/{REVISION}": "branch",
    rf"/api/models/{NAME}/preupload/{REVISION}": "preupload",
    rf"/api/models/{NAME}/commit/{REVISION}": "commit",
    "/api/repos/create": "create",
    "/api/validate-yaml": "check_card",
    rf"/api/models/{NAME}": "info",
    rf"/{NAME}/resolve/{REVISION}/(?P<path>.+)": "file",
}


@contextlib.contextmanager
def serving(cache: Path) -> Iterator[HubServer]:
    """Run a stand-in for the hub of this process, with an empty cache.

    `huggingface_hub` reads the environment on import, so its constants are replaced.
    """
    constants = pytest.importorskip("huggingface_hub.constants")
    server = HubServer()
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, server.url)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "ENDPOINT", server.url)
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        patch.setattr(constants, "HF_HUB_CACHE", str(cache / "hub"))
        patch.setattr(constants, "HF_TOKEN_PATH", str(cache / "token"))
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        patch.delenv("HF_TOKEN", raising=False)
        hub.download_model.cache_clear()
        yield server
        hub.download_model.cache_clear()
    server.shutdown()
    server.server_close()
