"""Failures of the network and of the model hub."""

from __future__ import annotations

from studio.core.facts import MachineFacts
from studio.hub.offline import OFFLINE
from studio.machine.failures.failure import Doubt, Failure, Remedy, said
from studio.machine.failures.probes import Values, found, variable
from studio.machine.failures.remedies import FETCH_AGAIN, LOCAL_MODEL

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
NOT_OFFLINE = ("0", "false", "no", "off")
ELSEWHERE = (
    r"[^\n]{0,60} for url: (?P<name>https?://(?!(?:[\w-]+\.)*(?:huggingface\.co|hf\.co)\b|localhost|127\.)"
    r"(?!\S*/(?:resolve|api/(?:v\d/)?(?:models|datasets|spaces|repos|whoami))\b)\S+)"
)
"""An address that is none of the hub's, which asks for a file or a repository by these words at any host."""


def _silent_hub(machine: MachineFacts) -> Values | None:
    where = f"{machine.hub_endpoint}: " if machine.hub_endpoint else ""
    return found(where + machine.hub) if machine.hub not in ("", "ok") else None


def _left_offline(machine: MachineFacts) -> Values | None:
    for name in OFFLINE:
        named = variable(machine, name)
        if named and named.partition("=")[2].strip().lower() not in NOT_OFFLINE:
            return found(named)
    return None


def _proxied_window(machine: MachineFacts) -> Values | None:
    proxy, around = variable(machine, *PROXIES), variable(machine, "NO_PROXY").partition("=")[2]
    excepted = around.strip() == "*" or {"127.0.0.1", "localhost"} <= set(around.replace(" ", "").split(","))
    # The address alone may hold a password: only the variable's name is told.
    return (
        found(f"{proxy.partition('=')[0]} is set, NO_PROXY={around or '-'}")
        if proxy and not excepted
        else None
    )


FAILURES = (
    Failure(
        "address_gone",
        said(
            r"HTTP Error (?:404|410): (?:Not Found|Gone)[^\n]*",
            r"\b404 Not Found\b[^\n]{0,40}https?://(?P<name>\S+)",
            rf"\b(?:404|410) Client Error: {ELSEWHERE}",
            r"HTTP error (?:404|410) while getting (?P<name>\S+)",
        ),
        (Remedy("look_at_address"), Remedy("newer_program")),
        code="N68",
        strength=0.8,
        unless=said(r"\bwheel_url\b|huggingface\.co|RepositoryNotFound|EntryNotFound"),
    ),
    Failure(
        "gated",
        said(
            r"\bGatedRepoError\b",
            r"gated (?:repo|dataset|model)\b",
            r"Access to (?:model|dataset) \S+ is restricted",
            r"huggingface\.co/[^\s'\"]+: status code 40[13]\b",
        ),
        (Remedy("accept_licence"), LOCAL_MODEL),
        code="N5",
    ),
    Failure(
        "not_on_hub",
        said(
            r"\bRepositoryNotFoundError\b",
            r"\bRevisionNotFoundError\b",
            r"\bDatasetNotFoundError\b",
            r"\bRemoteEntryNotFoundError\b",
            rf"404 Client Error(?!: {ELSEWHERE.replace('?P<name>', '?:')})|404 Not Found",
            r"is not a local folder and is not a valid model identifier",
            r"Dataset '[^'\n]+' doesn't exist on the Hub",
            r"No config file found - are you sure the `?model_name",
        ),
        (Remedy("spelling"), Remedy("log_in_private"), LOCAL_MODEL),
        code="N9",
        unless=said(
            r"HFValidationError|Repo id must",
            r"404 Client Error: [^\n]{0,40} for url: https?://[\w.-]*mirrors?\.",
            r"CondaHTTPError",
            r"localhost|127\.0\.0\.1",
            r"GatedRepoError|gated (?:repo|dataset|model)",
        ),
    ),
    Failure(
        "no_token",
        said(
            r"40[13] (?:Client Error|Unauthorized|Forbidden)",
            r"Invalid user token",
            r"Invalid username or password",
            r"LocalTokenNotFoundError|Token is required|You must be (?:logged in|authenticated)",
            r"Illegal header value b'Bearer",
        ),
        (Remedy("log_in"), LOCAL_MODEL),
        code="N10",
        unless=said(
            r"for url: https://[\w.-]*(?:amazonaws|cloudfront|cdn-lfs[\w-]*|xethub)\.",
            r"awaiting response\.\.\. 40[13]\b",
        ),
    ),
    Failure(
        # As wget says it, which asks for one address, without any account.
        "server_refused",
        said(r"awaiting response\.\.\. 40[13]\b[^\n]{0,40}"),
        (Remedy("new_link"), LOCAL_MODEL),
        code="N63",
    ),
    Failure(
        "certificate",
        said(r"CERTIFICATE_VERIFY_FAILED", r"certificate verify failed"),
        (Remedy("certificate"),),
        code="N3",
    ),
    Failure(
        "offline",
        said(r"\bOfflineModeIsEnabled\b", r"outgoing traffic has been disabled", r"offline mode is enabled"),
        (Remedy("go_online"), LOCAL_MODEL),
        code="N2",
        probe=_left_offline,
        subject="network",
        severity="note",
    ),
    Failure(
        "window_proxied",
        said(
            # The address was asked for through the proxy.
            r"(?:httpx?|httpcore|requests)\.[\w.]*(?:Error|Timeout)[\s\S]{0,6000}?When localhost is not accessible",
            r"Couldn.t start the app because 'https?://(?:localhost|127\.|0\.0\.0\.0)",
            r"(?P<doubtful>When localhost is not accessible)",
            r"ValueError: .{0,40}(?P<doubtful>shareable link must be created)",
        ),
        (Remedy("no_proxy"),),
        code="N6",
        probe=_proxied_window,
        subject="network",
        severity="note",
        repair="proxy_for_localhost",
        doubt=Doubt("window_libraries", "above_bool", asked=True),
    ),
    Failure(
        "download_stuck",
        said(
            r"Status\(\d{3}\)[^\n]{0,200}xethub|xethub[^\n]{0,300}(?:error|failed|timed? ?out)",
            r"CAS service error",
            r"CasClientError",
            r"hf_xet.{0,120}(?:error|failed|timed? ?out)",
            r"cas-\w+\.xethub",
        ),
        (Remedy("no_xet"), FETCH_AGAIN),
        code="N4",
    ),
    Failure(
        "download_cut",
        said(
            r"\bIncompleteRead\b",
            r"\bFSTimeoutError\b",
            r"\bChunkedEncodingError\b",
            r"Connection broken(?! by)",
            r"peer closed connection",
            r"\bRemoteProtocolError\b",
            r"Consistency check failed",
            # Whose answer it waited for, the text does not show.
            r"httpx\.ReadTimeout: (?P<doubtful>timed out)(?![\s\S]*huggingface)",
            r"\bReadTimeout(?:Error)?\b|Read timed out|read operation timed out",
            r"\bReadError\b",
            r"Connection reset by peer",
            r"WinError (?:10053|10054)\b|\[Errno 103\]",
            r"digest mismatch, file must be downloaded again",
        ),
        (FETCH_AGAIN, LOCAL_MODEL),
        code="N11",
        doubt=Doubt("page_connection", "which_address", asked=True),
        unless=said(
            r"(?:127\.0\.0\.1|localhost):\d+/startup-events",
            # Two processes of a training that talk to each other.
            r"(?:RuntimeError|DistNetworkError|DistBackendError): (?:\[[^\]\n]{1,200}\][: ]*)?Connection reset by peer",
        ),
    ),
    Failure(
        "hub_unreachable",
        said(
            # Nobody answers at an address that the text does not show.
            r"ConnectError: (?P<doubtful>All connection attempts failed)(?![\s\S]*huggingface)",
            r"\bConnectError\b",
            r"\bConnectTimeout\b",
            r"Max retries exceeded",
            r"getaddrinfo failed",
            r"name resolution",
            r"Name or service not known",
            r"Network is unreachable",
            r"\bLocalEntryNotFoundError\b",
            r"Connection refused",
            r"We couldn't connect to ",
            r"Couldn't reach ",
            r"WinError 100(?:60|61|65|51)\b",
            r"Errno 11001\b",
        ),
        (Remedy("mirror"), LOCAL_MODEL),
        code="N1",
        doubt=Doubt("server_off", "which_address", asked=True),
        unless=said(
            r"HFValidationError|Repo id must",
            r"Distant resource does not have an? ",
            r"Couldn't reach server at '(?!https?:)",
            r"\bProxyError\b",
            r"SSLEOFError|EOF occurred in violation",
            r"Cannot find an appropriate cached snapshot",
            r"Couldn't find (?:any data file|a dataset script) at",
            r"looks like (?:\.{0,2}/|[A-Za-z]:\\)\S* is not the path",
        ),
        probe=_silent_hub,
        subject="network",
        severity="note",
    ),
    Failure(
        "hub_altered",
        said(r"Distant resource does not have an? [\w-]+"),
        (Remedy("without_mirror"), LOCAL_MODEL),
        code="N45",
    ),
    Failure(
        # The rest of an earlier download is longer than the file is now.
        "download_leftover",
        said(r"416 Client Error|Range Not Satisfiable"),
        (Remedy("delete_incomplete"), FETCH_AGAIN),
        code="N43",
    ),
    Failure(
        # Any other machine than the hub, as the system's own programs say it.
        "net_unreachable",
        said(
            r"curl: \((?:5|6|7|28|35|56)\) [^\n]{0,160}?(?:host:?|to) (?P<name>[\w-]+(?:\.[\w-]+)+)",
            # The numbers of libcurl, by which conda's libmamba downloads, too.
            r"(?:curl:|Download error) \((?:5|6|7|28|35|56)\) |Operation too slow\. Less than \d+ bytes",
            r"ssh: (?:connect to host|Could not resolve hostname) (?P<name>[\w.-]+)",
            r"(?:Could not resolve host|unable to resolve host address):? ['\u2018]?(?P<name>[\w.-]+)",
            r"\[(?:Errno (?:100|110|112|113)|WinError (?:53|64|1231|10060|10065))\]",
        ),
        (Remedy("ping_name"), Remedy("right_proxy")),
        code="N53",
        strength=0.6,
    ),
)
