# SPDX-License-Identifier: Apache-2.0
"""The private files with which the API server and its clients prove who they are.

FOLDER/api/ca.pem          the certificate and key of our own CA, which signs only the server's certificate
FOLDER/api/server.pem      the server's certificate and key, for localhost, 127.0.0.1 and ::1
FOLDER/api/ROLE.token      the token of one role
FOLDER/kubeconfig          for kubectl: the address of the server, the CA, and the token of the admin

Only the user can read these files, whatever the umask is. They survive a restart of the engine. A token is valid until
the user removes its file; the next start of the engine then makes a new one. Each file is replaced by a rename, so a
killed engine leaves either the old content or the new one.
"""

import asyncio
import hmac
import logging
import secrets
import ssl
from base64 import b64encode
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from trainwright.api.access import AccessRole, ApiIdentity
from trainwright.errors import EngineError
from trainwright.model.job import Body
from trainwright.node import openssl
from trainwright.node.openssl import write_private
from trainwright.runtime.ports import Clock

_LOG = logging.getLogger(__name__)
#: The name of the cluster, the user and the context in a kubeconfig.
NAME = "trainwright"
#: The name of the extension with which we mark our entries in a kubeconfig.
MARK = "trainwright.dev"
KUBECONFIG = "kubeconfig"
_FOLDER = "api"
_AUTHORITY_DAYS, _SERVER_DAYS = 3650, 365
#: The server's certificate is replaced when it is valid for less than this time, and the CA when it is valid for less
#: than two certificates of the server.
_RENEWAL = timedelta(days=_SERVER_DAYS // 3)
_AUTHORITY_RENEWAL = timedelta(days=2 * _SERVER_DAYS)
#: The engine reads the clock again after this time, because the machine may have been suspended meanwhile.
_CHECK_SECONDS = 3600.0
_TOKEN_BYTES = 32
_MIN_TOKEN_CHARACTERS = 32
#: We give every setting to `openssl`, because the defaults of its configuration file differ between systems. Clients
#: with VERIFY_X509_STRICT (the default of Python 3.13) refuse certificates without the key identifiers.
_CONFIGURATION = """\
[req]
distinguished_name = name
prompt = no
[name]
CN = {name}
[ca]
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid:always
subjectAltName = DNS:localhost, IP:127.0.0.1, IP:::1
"""


class ApiCredentials:
    """The credentials of one engine. `prepare` reads or makes all files."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._root, self._folder, self._clock = folder, folder / _FOLDER, clock
        self.kubeconfig = folder / KUBECONFIG
        self._authority, self._server = self._folder / "ca.pem", self._folder / "server.pem"
        self._tokens: dict[AccessRole, bytes] = {}
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)

    def prepare(self) -> ssl.SSLContext:
        """Read or make the certificates and tokens; return the TLS settings of the server. Raises EngineError.

        It blocks for about 50 ms, because it runs `openssl`.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._folder.chmod(0o700)
            self._tokens = {role: self._token(role) for role in AccessRole}
            self.renew()
            self._load()
        except OSError as error:
            raise EngineError(f"the credentials in {self._folder} cannot be used: {error.strerror or error}") from None
        return self._context

    # -- tokens ------------------------------------------------------------------------------------------------------

    def identify(self, authorization: str) -> ApiIdentity | None:
        """The client with this Authorization header; None if the header has no valid token.

        The time of the comparison does not depend on the tokens, so it tells an attacker nothing about them.
        """
        scheme, _, word = authorization.strip().partition(" ")
        given = word.strip().encode(errors="surrogateescape")
        equal = [role for role, token in self._tokens.items() if hmac.compare_digest(token, given)]
        return ApiIdentity(f"{NAME}:{equal[0]}", equal[0]) if equal and scheme.lower() == "bearer" else None

    def token(self, role: AccessRole) -> str:
        """The token of a role."""
        return self._tokens[role].decode()

    def _token(self, role: AccessRole) -> bytes:
        path = self._folder / f"{role}.token"
        try:
            found = path.read_bytes().strip()
        except FileNotFoundError:
            found = secrets.token_urlsafe(_TOKEN_BYTES).encode()
            _replace(path, found + b"\n")
            return found
        path.chmod(0o600)
        if len(found) < _MIN_TOKEN_CHARACTERS or not found.isascii() or len(found.split()) != 1:
            raise EngineError(f"{path} is not a token; remove the file, and the next start makes a new token")
        return found

    # -- certificates ------------------------------------------------------------------------------------------------

    async def keep_renewed(self, renewed: Callable[[], None]) -> None:
        """Replace the certificates before they end, and let the server use the new ones. Never returns.

        After each replacement this calls `renewed`: a new CA needs a new kubeconfig.
        """
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            try:
                if await asyncio.to_thread(self.renew):
                    self._load()
                    renewed()
            except (EngineError, OSError) as error:  # the old certificate is still valid: try again after the pause
                _LOG.warning("the certificate of the API server cannot be renewed: %s", error)

    def authority(self) -> bytes:
        """The certificate of our CA in PEM, without its key."""
        text = self._authority.read_text()
        begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----\n"
        return text[text.index(begin) : text.index(end) + len(end)].encode()

    def renew(self) -> bool:
        """Make the certificates that are missing, damaged or about to end. Returns whether there are new ones."""
        fresh = self._is_due(self._authority, _AUTHORITY_RENEWAL)
        if fresh:
            self._make_authority()
        if not fresh and not self._is_due(self._server, _RENEWAL) and self._is_ours():
            return False
        self._make_server()
        return True

    def _is_due(self, certificate: Path, margin: timedelta) -> bool:
        if not certificate.exists():
            return True
        if not openssl.is_installed():  # nothing can be renewed, but the files may be valid
            return False
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, password="")
            found = openssl.validity(certificate)
        except (EngineError, OSError, ValueError):
            return True
        now = self._clock.now()
        return found.ends - margin < now or found.begins > now

    def _is_ours(self) -> bool:
        """Whether our CA has signed the certificate of the server. A killed engine may have replaced only the CA."""
        if not openssl.is_installed():
            return True
        try:
            openssl.run(["verify", "-no_check_time", "-CAfile", str(self._authority), str(self._server)])
        except EngineError:
            return False
        return True

    def _make_authority(self) -> None:
        with TemporaryDirectory(dir=self._folder) as folder:
            key, certificate = Path(folder, "key"), Path(folder, "crt")
            config = _configuration(folder, f"{NAME} {secrets.token_hex(4)}")
            form = ["-extensions", "ca", "-days", str(_AUTHORITY_DAYS), "-sha256"]
            files = ["-keyout", str(key), "-out", str(certificate)]
            openssl.run(["req", "-x509", *config, *openssl.NEW_KEY, *form, *files])
            _replace(self._authority, certificate.read_bytes() + key.read_bytes())

    def _make_server(self) -> None:
        with TemporaryDirectory(dir=self._folder) as folder:
            key, request, certificate = (Path(folder, name) for name in ("key", "csr", "crt"))
            config = _configuration(folder, "localhost")
            openssl.run(["req", "-new", *config, *openssl.NEW_KEY, "-keyout", str(key), "-out", str(request)])
            signer = ["-CA", str(self._authority), "-CAkey", str(self._authority)]
            form = ["-set_serial", f"0x{secrets.token_hex(16)}", "-days", str(_SERVER_DAYS), "-sha256"]
            extensions = ["-extfile", config[1], "-extensions", "server"]
            openssl.run(["x509", "-req", "-in", str(request), *signer, *form, *extensions, "-out", str(certificate)])
            _replace(self._server, certificate.read_bytes() + key.read_bytes())

    def _load(self) -> None:
        """Let new connections use the certificate in the file."""
        try:
            self._context.load_cert_chain(self._server, password="")
        except (ssl.SSLError, ValueError) as error:
            raise EngineError(f"{self._server} is not a certificate with its key: {error}") from None

    # -- kubeconfig --------------------------------------------------------------------------------------------------

    def kubeconfig_for(self, role: AccessRole, server: str) -> Body:
        """The content of a kubeconfig for one role; `server` is the URL of the API.

        Each entry has an extension, which kubectl ignores and keeps. With it, a command finds our entries in a
        kubeconfig that has also other entries.
        """
        mark = [{"name": MARK, "extension": {"folder": str(self._root)}}]
        authority = b64encode(self.authority()).decode()
        cluster: Body = {"server": server, "certificate-authority-data": authority, "extensions": mark}
        user: Body = {"token": self.token(role), "extensions": mark}
        context: Body = {"cluster": NAME, "user": NAME, "namespace": "default", "extensions": mark}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": NAME, "cluster": cluster}],
            "users": [{"name": NAME, "user": user}],
            "contexts": [{"name": NAME, "context": context}],
            "current-context": NAME,
        }

    def write_kubeconfig(self, server: str) -> Path:
        """Write the kubeconfig of the admin, as JSON, which is also YAML; return its path. Raises OSError."""
        config = self.kubeconfig_for(AccessRole.ADMIN, server)
        _replace(self.kubeconfig, msgspec.json.format(msgspec.json.encode(config)) + b"\n")
        return self.kubeconfig


def _configuration(folder: str, name: str) -> list[str]:
    """Write the configuration file of `openssl` into a folder; return the arguments that name it."""
    file = Path(folder, "openssl.cnf")
    file.write_text(_CONFIGURATION.format(name=name))
    return ["-config", str(file)]


def _replace(path: Path, data: bytes) -> None:
    """Replace a private file by a rename."""
    new = path.with_name(f"{path.name}.new")
    write_private(new, data)
    new.replace(path)
