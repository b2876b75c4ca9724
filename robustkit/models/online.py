"""Whether published weights can be fetched, asked once and soon: the Hub's own client tries again for minutes."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request

ANSWER, WAIT = 4.0, 5.0
"""Seconds: that a server has for each step of its answer, and for all of it, since looking up a name has no limit."""
REMEDY = (
    "give a local file with --arch {arch}, or fetch the weights once where there is a network: what lies in the folder "
    "that HF_HUB_CACHE names is used without one"
)


def hub() -> str:
    """Return the address of the Hub that is asked; empty where HF_HUB_OFFLINE forbids it."""
    from huggingface_hub import constants

    return "" if constants.HF_HUB_OFFLINE else str(constants.ENDPOINT)


def answers(address: str) -> bool:
    """Whether a server gives any answer at all, within `WAIT` seconds, by the proxies that the environment names."""
    heard: list[bool] = []
    asking = threading.Thread(target=lambda: heard.append(_asked(address)), daemon=True)
    asking.start()
    asking.join(WAIT)
    return bool(heard and heard[0])


def _asked(address: str) -> bool:
    try:
        request = urllib.request.Request(address, method="HEAD")
        with urllib.request.build_opener().open(request, timeout=ANSWER):  # urlopen would keep the first proxies it saw
            return True
    except urllib.error.HTTPError:
        return True
    except Exception as fault:  # a proxy may say anything
        return "CERTIFICATE_VERIFY_FAILED" in str(fault)  # the Hub's client brings other certificates
