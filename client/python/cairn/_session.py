# SPDX-License-Identifier: Apache-2.0
"""Opens a connection on a thread and retries, so that an engine does not wait for it."""

from __future__ import annotations

import logging
import threading

from ._settings import Place
from .client import Client, connect
from .errors import Error, InvalidArgumentError
from .keys import SpaceSpec
from .space import Space

_BACKOFF_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)

_BESIDE_SECONDS = 0.05  # seconds between checks whether the other session is open

LOSSLESS = ("raw", "exact")


class Session:
    """`space` is None until the daemon answers. After that, the client reconnects by itself.

    beside: another session whose client this one uses. Close this one first. spec: None until it is
    known (`move`)."""

    def __init__(
        self,
        settings: Place,
        spec: SpaceSpec | None,
        name: str,
        log: logging.Logger,
        beside: Session | None = None,
    ) -> None:
        self._settings, self._spec, self._name, self._log = settings, spec, name, log
        self._beside = beside
        self._ended = threading.Event()
        self._client: Client | None = None
        self.space: Space | None = None
        self._thread = self._start()

    @property
    def is_lossless(self) -> bool:
        return self.space is not None and self.space.recipe in LOSSLESS

    @property
    def client(self) -> Client | None:
        return self._client

    def wait(self, seconds: float) -> bool:
        """Waits up to `seconds`. Returns whether the session is open."""
        self._thread.join(seconds)
        return self.space is not None

    def move(self, spec: SpaceSpec) -> None:
        """Switches to another space; `space` is None until that is open. The caller must no longer
        use the old space."""
        self._ended.set()
        self._thread.join()
        if self.space is not None:
            self.space.close()
        self.space, self._spec = None, spec
        self._ended.clear()
        self._thread = self._start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self.space = None
        if self._client is not None and self._beside is None:
            self._client.close()

    def _start(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name="cairn-connect", daemon=True)
        thread.start()
        return thread

    def _run(self) -> None:
        attempt, said = 0, ""
        if self._spec is None:
            return
        while self._beside is not None and self._beside.space is None:
            if self._ended.wait(_BESIDE_SECONDS):
                return
        while not self._ended.is_set():
            try:
                return self._open()
            except InvalidArgumentError as error:  # a retry would not help
                return self._log.error("cairn: nothing is cached: %s", error)
            except Error as error:
                if type(error).__name__ != said:
                    self._log.warning(
                        "cairn: no cache at %s (%s); the engine goes on without, and tries again",
                        self._settings.control,
                        error,
                    )
                said = type(error).__name__
            self._ended.wait(_BACKOFF_SECONDS[min(attempt, len(_BACKOFF_SECONDS) - 1)])
            attempt += 1

    def _open(self) -> None:
        settings, spec = self._settings, self._spec
        assert spec is not None
        if self._client is None and self._beside is not None:
            self._client = self._beside.client
        if self._client is None:
            self._client = connect(
                settings.control,
                data=settings.data,
                tenant=settings.tenant,
                client_name=self._name,
                region_bytes=settings.region_bytes,
                tls_ca=settings.tls_ca,
                tls_cert=settings.tls_cert,
                tls_key=settings.tls_key,
                tls_server=settings.tls_server,
                transports=settings.transports,
            )
        space = self._client.open_space(
            spec.model,
            spec.weights_revision,
            spec.groups,
            dtype=spec.dtype,
            tokens_per_block=spec.tokens_per_block,
            recipe=settings.recipe,
        )
        self._log.info(
            "cairn: space %s of model %s, weights %s, %s, blocks of %d tokens, recipe %s: %s",
            space.fingerprint.hex()[:12],
            spec.model,
            spec.weights_revision,
            spec.dtype,
            spec.tokens_per_block,
            space.recipe,
            "new, so nothing is in it: no engine of this model, weights, configuration and layout"
            " was here before; what an older Cairn kept has another name, and ages out"
            if space.was_created
            else "there already",
        )
        if settings.recipe not in (None, space.recipe):
            self._log.warning(
                "cairn: the space's recipe is %s, not %s: whoever made it chose",
                space.recipe,
                settings.recipe,
            )
        self.space = space
