"""The committed table of attacks is what the proxy and nginx do."""

import asyncio

from tests.requests.proxy.attack_table import PAGE, nginx_version, page, tables


def test_committed_table_of_attacks_is_up_to_date():
    requests, responses = asyncio.run(tables())
    committed = PAGE.read_text()
    for name, ours, _ in (*requests, *responses):
        assert f"| {name} | {ours} |" in committed
    if f"({nginx_version()};" in committed:
        assert committed == page(requests, responses)
