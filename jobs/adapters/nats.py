"""Publishing to a stream of NATS JetStream. Needs nats-py: ``pip install sql-jobs[nats]``."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from nats.aio.client import Client
from nats.errors import MaxPayloadError
from nats.js import JetStreamContext
from nats.js.errors import BadRequestError, NoStreamResponseError

from jobs.errors import ConfigError
from jobs.messages import Message, Published

SubjectOf: TypeAlias = Callable[[Message], str]

# What a subject may consist of; wildcards, spaces and empty tokens may not be published to.
_SUBJECT: Final = re.compile(r"[^\s.*>\x00-\x1f\x7f]+(\.[^\s.*>\x00-\x1f\x7f]+)*")
_CONNECT_SECONDS: Final = 5
_ACK_SECONDS: Final = 5.0


class JetStream:
    """A sink: each staged row becomes a message of a stream, in order, each confirmed.

    The message id is the staged id, so that the stream drops repeats within its duplicate window,
    which should be longer than the lease of the relay. The body is a JSON object of the fields of
    `jobs.relay.Message`, with the payload as ``input``; durations are seconds. A stream that covers
    the subjects must exist.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        *,
        subject: str | SubjectOf = "jobs",
        **options: Any,
    ) -> None:
        """
        Args:
            servers: URL of a server, or several of one cluster.
            subject: A function of the message that returns its subject, or a prefix: the subject is
                then ``<prefix>.<queue>.<name>``, where a character that a subject cannot have is
                written as ``%XX``.
            options: More for ``nats.connect``, such as ``user_credentials`` or ``tls``.

        Raises:
            ConfigError: The prefix is none.
        """
        if not callable(subject) and not (isinstance(subject, str) and _SUBJECT.fullmatch(subject)):
            raise ConfigError(f"subject: {subject!r:.200} is no prefix of a NATS subject")
        self._servers = servers if isinstance(servers, str) else list(servers)
        self._subject: SubjectOf = subject if callable(subject) else _below(subject)
        self._options = options
        self._client: Client | None = None

    async def open(self) -> None:
        """Connect. Raises ConnectionError where no server answers."""
        await self._connected()

    async def _connected(self) -> JetStreamContext:
        """The stream context of a live connection.

        One that was lost is made anew here, and not by the client: what the client keeps for a
        later connection would be sent after the relay has given it up.
        """
        if self._client is not None and self._client.is_connected:
            return self._client.jetstream()
        await self.close()
        client = Client()
        options: dict[str, Any] = {
            "connect_timeout": _CONNECT_SECONDS,
            "max_reconnect_attempts": 1,
            "error_cb": _quiet,
        }
        try:
            await client.connect(
                self._servers, **(options | self._options | {"allow_reconnect": False})
            )
        except BaseException as error:
            with contextlib.suppress(Exception):
                await client.close()
            if isinstance(error, Exception):
                raise ConnectionError(f"no NATS server answers: {_said(error)}") from error
            raise
        self._client = client
        return client.jetstream()

    async def publish(self, messages: Sequence[Message]) -> Published:
        """Publish in order, each when the one before it is confirmed, until one is not."""
        stream = await self._connected()
        for done, message in enumerate(messages):
            try:
                subject = self._subject(message)
                if not isinstance(subject, str) or not _SUBJECT.fullmatch(subject):
                    raise ValueError(f"{subject!r:.200} is no NATS subject")
                body = encode(message)
            except Exception as error:  # of the application's function
                return Published(done, error, refused=True)
            headers = {"Nats-Msg-Id": str(message.id)}
            if message.traceparent is not None:
                headers["traceparent"] = message.traceparent
            try:
                await stream.publish(subject, body, timeout=_ACK_SECONDS, headers=headers)
            except (MaxPayloadError, BadRequestError) as error:
                return Published(done, error, refused=True)
            except NoStreamResponseError:
                missing = ConnectionError(f"no stream takes the subject {subject}")
                return Published(done, missing)
            except Exception as error:  # a timeout, a connection that is gone, a full stream
                return Published(done, ConnectionError(_said(error)))
        return Published(len(messages))

    async def close(self) -> None:
        """Disconnect."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):  # it is gone either way
                await client.close()


def encode(message: Message) -> bytes:
    """The body of a message: a JSON object, the payload as it is stored."""
    fields = message._asdict()
    payload = fields.pop("input")
    for name in ("id", "run_id"):
        fields[name] = str(fields[name])
    fields["staged_at"] = message.staged_at.isoformat()
    fields["run_at"] = None if message.run_at is None else message.run_at.isoformat()
    fields["delay"] = message.delay.total_seconds()
    head = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    return f'{head[:-1]},"input":{payload}}}'.encode()


def _below(prefix: str) -> SubjectOf:
    def subject(message: Message) -> str:
        return f"{prefix}.{_token(message.queue)}.{_token(message.name)}"

    return subject


def _token(text: str) -> str:
    return quote(text, safe="").replace(".", "%2E").replace("~", "%7E")


def _said(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


async def _quiet(error: Exception) -> None:
    """What goes wrong between publishes shows at the next one."""
