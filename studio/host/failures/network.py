"""Failures of the network and of the model hub."""

from studio.host.failures.failure import Failure, Remedy, said
from studio.host.failures.remedies import FETCH_AGAIN, LOCAL_MODEL

FAILURES = (
    Failure(
        "gated",
        said(r"\bGatedRepoError\b", r"gated repo", r"Access to (?:model|dataset) \S+ is restricted"),
        (Remedy("accept_licence"), LOCAL_MODEL),
    ),
    Failure(
        "not_on_hub",
        said(
            r"\bRepositoryNotFoundError\b",
            r"\bRevisionNotFoundError\b",
            r"\bDatasetNotFoundError\b",
            r"\bRemoteEntryNotFoundError\b",
            r"404 (?:Client Error|Not Found)",
        ),
        (Remedy("spelling"), LOCAL_MODEL),
    ),
    Failure(
        "no_token",
        said(
            r"40[13] (?:Client Error|Unauthorized|Forbidden)",
            r"Invalid user token",
            r"Invalid username or password",
        ),
        (Remedy("log_in"), LOCAL_MODEL),
    ),
    Failure(
        "certificate",
        said(r"CERTIFICATE_VERIFY_FAILED", r"certificate verify failed"),
        (Remedy("certificate"),),
    ),
    Failure(
        "offline",
        said(r"\bOfflineModeIsEnabled\b", r"outgoing traffic has been disabled", r"offline mode is enabled"),
        (Remedy("go_online"), LOCAL_MODEL),
    ),
    Failure(
        "download_cut",
        said(
            r"\bIncompleteRead\b",
            r"\bChunkedEncodingError\b",
            r"Connection broken",
            r"peer closed connection",
            r"\bRemoteProtocolError\b",
            r"Consistency check failed",
            r"\bReadTimeout\b",
            r"\bReadError\b",
            r"Connection reset by peer",
            r"WinError 10054\b",
        ),
        (FETCH_AGAIN, LOCAL_MODEL),
    ),
    Failure(
        "hub_unreachable",
        said(
            r"\bConnectError\b",
            r"\bConnectTimeout\b",
            r"Max retries exceeded",
            r"getaddrinfo failed",
            r"name resolution",
            r"Name or service not known",
            r"Network is unreachable",
            r"\bLocalEntryNotFoundError\b",
            r"Connection refused",
        ),
        (Remedy("mirror"), LOCAL_MODEL),
    ),
)
