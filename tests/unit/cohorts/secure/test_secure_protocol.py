"""The protocol between clients and a server, in memory: masks cancel to the bit, lost clients are recovered, and the
server learns nothing else."""

from __future__ import annotations

import hashlib
import itertools
import secrets
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("cryptography")
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chisquare

from fedveca.cohorts.secure.client import SecureClient
from fedveca.cohorts.secure.identity import ProtocolError, sign, verify
from fedveca.cohorts.secure.lengths import SESSION_BYTES, SHARE_BYTES, SIGNED_BYTES, count_bytes, count_text
from fedveca.cohorts.secure.masks import add_pair_masks, derive_key, expand, find_public
from fedveca.cohorts.secure.server import ServerSession
from fedveca.cohorts.secure.session import (
    MISSING,
    MaskRequest,
    Session,
    SharedSecrets,
    ShareRequest,
    SignedKey,
    UnmaskRequest,
    read_revealed,
)

KEYS = [ec.generate_private_key(ec.SECP384R1()) for _ in range(6)]
PEERS = {i: key.public_key() for i, key in enumerate(KEYS)}
Integers = dict[str, NDArray[np.int64]]


class Parties(NamedTuple):
    clients: dict[int, SecureClient]
    server: ServerSession

    def share(self, who: list[int] | None = None) -> None:
        for i, client in self.clients.items():
            if who is None or i in who:
                self.server.add_shares(i, client.share(self.server.request))

    def mask(self, i: int, vectors: Integers) -> NDArray[np.uint64]:
        masked = self.clients[i].mask(self.server.make_mask_request(i), vectors)
        return np.concatenate([masked[name] for name in sorted(masked)])

    def reveal(self, arrived: list[int], who: list[int]) -> dict[int, dict[int, bytes]]:
        request = self.server.make_unmask_request(arrived)
        return {i: read_revealed(self.clients[i].unmask(request), self.server.active) for i in who}


def meet(members: int = 4, threshold: int = 3, least: int = 2) -> Parties:
    clients = {i: SecureClient(i, KEYS[i], PEERS, least) for i in range(members)}
    session = Session(secrets.token_bytes(SESSION_BYTES), threshold, tuple(range(members)))
    return Parties(clients, ServerSession(session, {i: client.channel for i, client in clients.items()}))


def draw(i: int, size: int = 7) -> Integers:
    rng = np.random.default_rng(i)
    return {"grad": rng.integers(-(2**60), 2**60, size), "G": rng.integers(-9, 9, size + 2)}


def flatten(vectors: Integers) -> NDArray[np.int64]:
    return np.concatenate([vectors[name] for name in sorted(vectors)])


def find_sum(parties: Parties, arrived: list[int], helpers: list[int]) -> NDArray[np.int64]:
    total = np.zeros(16, np.uint64)
    for i in arrived:
        total += parties.mask(i, draw(i))
    parties.server.unmask(total, arrived, parties.reveal(arrived, helpers))
    return total.view(np.int64)


def test_two_clients_masks_cancel_by_hand() -> None:
    """The lower number adds what the higher subtracts."""
    low, high = secrets.token_bytes(32), secrets.token_bytes(32)
    a, b = np.zeros(5, np.uint64), np.zeros(5, np.uint64)
    add_pair_masks(a, 2, low, {5: find_public(high)}, b"here")
    add_pair_masks(b, 5, high, {2: find_public(low)}, b"here")
    key = derive_key(low, find_public(high), b"here" + (2).to_bytes(4) + (5).to_bytes(4))
    assert np.array_equal(a, expand(key, 5))
    assert not (a + b).any()
    assert a.any()


def test_masks_differ_from_session_to_session_and_the_sum_does_not() -> None:
    """All keys and seeds are the operating system's, and the result is reproducible to the bit all the same."""
    seen, sums = [], []
    for _ in range(2):
        parties = meet()
        parties.share()
        masked = {i: parties.mask(i, draw(i)) for i in range(4)}
        total = masked[0] + masked[1] + masked[2] + masked[3]
        parties.server.unmask(total, [0, 1, 2, 3], parties.reveal([0, 1, 2, 3], [0, 1, 2]))
        seen.append(masked)
        sums.append(total)
    assert np.array_equal(sums[0], sums[1])
    assert all(not np.array_equal(seen[0][i], seen[1][i]) for i in range(4))


def test_below_the_threshold_nothing_is_revealed() -> None:
    parties = meet(5, 4)
    parties.share()
    total = np.zeros(16, np.uint64)
    for i in range(4):
        total += parties.mask(i, draw(i))
    with pytest.raises(ProtocolError, match="3 masked vectors arrived; the threshold is 4"):
        parties.clients[0].unmask(parties.server.make_unmask_request([0, 1, 2]))
    three = parties.reveal([0, 1, 2, 3], [0, 1, 2])
    with pytest.raises(ProtocolError, match="3 shares of a secret of client 0 are there; the threshold is 4"):
        parties.server.unmask(total, [0, 1, 2, 3], three)


def test_too_few_members_with_secrets_mask_nothing() -> None:
    parties = meet(5, 4)
    parties.share([0, 1, 2])
    with pytest.raises(ProtocolError, match="3 members shared their secrets; the threshold is 4"):
        parties.mask(0, draw(0))


def test_a_client_gives_one_secret_of_each_member_and_only_once() -> None:
    """Of those that arrived the self mask's share, of the others the mask key's; then the session is over."""
    parties = meet()
    parties.share()
    for i in range(4):
        parties.mask(i, draw(i))
    before = {i: dict(client._open[parties.server.session.name].shares) for i, client in parties.clients.items()}
    shares = parties.reveal([0, 1, 3], [0])[0]
    assert all(len(share) == SHARE_BYTES for share in shares.values())
    for i, share in shares.items():
        assert share == before[0][i][1 if i in (0, 1, 3) else 0]
        assert share != before[0][i][0 if i in (0, 1, 3) else 1]
    for arrived in ([0, 1, 2], [0, 1, 3]):
        with pytest.raises(ProtocolError, match="not known here, or is over"):
            parties.clients[0].unmask(parties.server.make_unmask_request(arrived))


@pytest.mark.parametrize("n", range(3, 7))
def test_no_two_groups_of_clients_can_give_both_secrets_of_one(n: int) -> None:
    """A secret needs t clients, and each gives one of a client's two: a client accepts t only where any two groups of t
    have a client in common."""
    for t in range(n + 2):
        groups = list(itertools.combinations(range(n), t))
        disjoint = any(not set(a) & set(b) for a, b in itertools.product(groups, repeat=2))
        parties = meet(n, t)
        if groups and not disjoint:
            parties.share([0])
            assert parties.server.active == [0]
        else:
            with pytest.raises(ProtocolError, match=f"threshold {t} of {n} members is not safe"):
                parties.share([0])


def test_a_client_keeps_to_the_threshold_that_it_was_set_up_with() -> None:
    parties = meet(4, 3, least=4)
    with pytest.raises(ProtocolError, match="threshold 3 of 4 members is not safe; this node needs 4"):
        parties.share()


def test_a_session_masks_one_set_of_vectors() -> None:
    parties = meet()
    parties.share()
    parties.mask(0, draw(0))
    with pytest.raises(ProtocolError, match="masked other vectors already"):
        parties.mask(0, draw(1))
    with pytest.raises(ProtocolError, match="open already"):
        parties.clients[0].share(parties.server.request)


def test_the_server_cannot_bring_a_client_of_its_own() -> None:
    """A mask key, or a channel key, that a member's node key did not sign is rejected by every other client."""
    parties = meet()
    mallory = ec.generate_private_key(ec.SECP384R1())
    false = SecureClient(3, mallory, PEERS | {3: mallory.public_key()}, 2)
    session, channels = ShareRequest.read(parties.server.request)
    with pytest.raises(ProtocolError, match="the channel key of client 3 is not signed by the key"):
        parties.clients[0].share(ShareRequest(session, channels | {3: false.channel}).pack())
    stranger = ShareRequest(Session(session.name, 4, (0, 1, 2, 3, 9)), channels | {9: false.channel}).pack()
    with pytest.raises(ProtocolError, match="members that this node has no key of"):
        parties.clients[0].share(stranger)
    parties.share()
    honest = MaskRequest.read(parties.server.make_mask_request(0))
    forged = SignedKey(find_public(bytes(range(32))), honest.masks[3].signature)
    request = honest._replace(masks=honest.masks | {3: forged}).pack()
    with pytest.raises(ProtocolError, match="the mask key of client 3 is not signed by the key"):
        parties.clients[0].mask(request, draw(0))


def test_clients_that_saw_other_members_do_not_mask_together() -> None:
    """A mask key is signed with the members and the threshold that its owner saw."""
    first, second = meet(4, 3), meet(4, 3)
    name = first.server.session.name
    second.clients[1] = first.clients[1]
    other = ServerSession(Session(name, 4, (0, 1, 2, 3)), {i: client.channel for i, client in second.clients.items()})
    other.add_shares(1, second.clients[1].share(other.request))
    del first.clients[1]._open[name]
    first.share()
    first.server.shares[1] = first.server.shares[1]._replace(mask=other.shares[1].mask)
    with pytest.raises(ProtocolError, match="the mask key of client 1 is not signed"):
        first.mask(0, draw(0))


def test_sealed_shares_open_for_their_receiver_alone() -> None:
    """Another member, or a text that was changed or sealed for another session, gives no share, and no error."""
    parties = meet()
    parties.share()
    request = MaskRequest.read(parties.server.make_mask_request(0))
    last = request.sealed[2][-1] ^ 1
    swapped = request.sealed | {1: request.sealed[2], 2: request.sealed[2][:-1] + bytes([last])}
    parties.clients[0].mask(request._replace(sealed=swapped).pack(), draw(0))
    for i in (1, 2, 3):
        parties.mask(i, draw(i))
    shares = parties.reveal([0, 1, 2, 3], [0])[0]
    assert [shares[i] == MISSING for i in range(4)] == [False, True, True, False]


def test_a_session_that_names_strangers_or_nobody_is_not_answered() -> None:
    parties = meet()
    parties.share()
    for i in range(3):
        parties.mask(i, draw(i))
    for arrived in ([0, 1, 5], [0, 0, 0], []):
        with pytest.raises(ProtocolError):
            parties.clients[0].unmask(UnmaskRequest(parties.server.session.name, tuple(arrived)).pack())
    request = MaskRequest.read(parties.server.make_mask_request(3))
    del request.masks[3]
    with pytest.raises(ProtocolError, match="not members of the session"):
        parties.clients[3].mask(request.pack(), draw(3))


def test_shares_that_do_not_fit_are_found_out() -> None:
    """Wrong shares of a lost client's mask key do not give the key that it signed."""
    parties = meet()
    parties.share()
    total = np.zeros(16, np.uint64)
    for i in (0, 1, 2):
        total += parties.mask(i, draw(i))
    revealed = parties.reveal([0, 1, 2], [0, 1, 2])
    revealed[1][3] = revealed[0][3]
    with pytest.raises(ProtocolError, match="client 3"):
        parties.server.unmask(total, [0, 1, 2], revealed)


def test_a_restarted_client_answers_with_its_new_channel_key() -> None:
    parties = meet()
    parties.clients[2] = SecureClient(2, KEYS[2], PEERS, 2)
    answer = parties.clients[2].share(parties.server.request)
    assert answer == parties.clients[2].channel.pack()
    assert len(answer) == SIGNED_BYTES


def test_old_sessions_are_forgotten() -> None:
    client = SecureClient(0, KEYS[0], PEERS, 2)
    others = {i: SecureClient(i, KEYS[i], PEERS, 2).channel for i in (1, 2)}
    for n in range(9):
        session = Session(bytes([n] * SESSION_BYTES), 2, (0, 1, 2))
        client.share(ShareRequest(session, others | {0: client.channel}).pack())
    assert len(client._open) == 4


@pytest.fixture
def fixed_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and seeds from a counter, so that a test of chance gives the same in every run."""
    counter = itertools.count()

    def draw_bytes(size: int) -> bytes:
        return hashlib.shake_256(b"test" + next(counter).to_bytes(8)).digest(size)

    monkeypatch.setattr(secrets, "token_bytes", draw_bytes)


@pytest.mark.usefixtures("fixed_secrets")
@pytest.mark.parametrize("value", [0, 1, -1, 2**61])
def test_what_the_server_sees_of_one_client_is_uniform(value: int) -> None:
    """Chi-squared over the bytes, and over each byte of a number: a vector of one value looks like chance."""
    parties, size = meet(), 32768
    parties.share()
    masked = parties.clients[1].mask(parties.server.make_mask_request(1), {"G": np.full(size, value)})["G"]
    table = masked.view(np.uint8).reshape(size, 8)
    for column in (table.ravel(), *table.T):
        assert chisquare(np.bincount(column, minlength=256)).pvalue > 1e-4
    pairs = np.bincount((table[:-1, 0].astype(int) >> 4) * 16 + (table[1:, 0] >> 4), minlength=256)
    assert chisquare(pairs).pvalue > 1e-4  # a number says nothing about the next


@pytest.mark.usefixtures("fixed_secrets")
def test_the_test_of_uniformity_sees_a_vector_without_a_mask() -> None:
    """The same test on integers as they are before they are masked, and on the sum after: it fails on both."""
    integers = np.round(np.random.default_rng(0).normal(size=32768) * 2**30).astype(np.int64)
    assert chisquare(np.bincount(integers.view(np.uint8), minlength=256)).pvalue < 1e-9


@pytest.mark.usefixtures("fixed_secrets")
def test_self_mask_and_pair_masks_each_hide_the_vector() -> None:
    """With the self mask removed the pairs still hide it, and the other way round: neither alone reveals anything."""
    parties, size = meet(), 32768
    parties.share()
    mine = parties.clients[1]._open[parties.server.session.name]
    masked = parties.clients[1].mask(parties.server.make_mask_request(1), {"G": np.zeros(size, np.int64)})["G"]
    own = expand(mine.seed, size)
    for left in (masked - own, own):
        assert left.any()
        assert chisquare(np.bincount(left.view(np.uint8), minlength=256)).pvalue > 1e-4


def test_a_signature_is_of_one_key_one_text_and_this_protocol() -> None:
    signature = sign(KEYS[0], b"text")
    assert len(signature) == 96
    verify(PEERS[0], signature, b"text", "it")
    for key, text in ((PEERS[1], b"text"), (PEERS[0], b"texu")):
        with pytest.raises(ProtocolError, match="it is not signed by the key that this node knows"):
            verify(key, signature, text, "it")


@pytest.mark.parametrize("size", [0, 1, 16, 100, 1000])
def test_garbage_is_not_a_message(size: int) -> None:
    parties, data = meet(), bytes(size)
    parties.share()
    for read in (ShareRequest.read, MaskRequest.read):
        with pytest.raises(ProtocolError):
            read(data)
    with pytest.raises(ProtocolError):
        SharedSecrets.read(data, parties.server.session, 0)
    with pytest.raises(ProtocolError):
        read_revealed(data + b"x", [0, 1])
    with pytest.raises(ProtocolError):
        parties.server.add_shares(0, parties.clients[0].channel.pack() + bytes(SIGNED_BYTES) + bytes(3 * 148))


def test_bytes_are_counted_as_they_are() -> None:
    parties = meet(4, 3)
    shares = [client.share(parties.server.request) for client in parties.clients.values()]
    for i, data in enumerate(shares):
        parties.server.add_shares(i, data)
    arrived = [0, 2, 3]
    for i in range(4):
        parties.mask(i, draw(i))
    unmask = parties.server.make_unmask_request(arrived)
    revealed = [parties.clients[i].unmask(unmask) for i in arrived]
    down = 4 * count_text(len(parties.server.request)) + 3 * count_text(len(unmask)) + 4 * 8
    down += sum(count_text(len(parties.server.make_mask_request(i))) for i in range(4))
    up = sum(count_text(len(data)) for data in (*shares, *revealed))
    assert count_bytes(4, 3) == (down, up)


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_the_sum_is_exact_whoever_is_lost_at_whatever_stage(data: st.DataObject) -> None:
    n = data.draw(st.integers(3, 6), "members")
    t = data.draw(st.integers(n // 2 + 1, n), "threshold")
    everyone = list(range(n))
    shared = sorted(data.draw(st.permutations(everyone), "shared")[: data.draw(st.integers(t, n))])
    arrived = sorted(data.draw(st.permutations(shared), "arrived")[: data.draw(st.integers(t, len(shared)))])
    helpers = data.draw(st.permutations(arrived), "helpers")[: data.draw(st.integers(t, len(arrived)))]
    parties = meet(n, t)
    parties.share(shared)
    with np.errstate(over="ignore"):
        expected = np.sum([flatten(draw(i)) for i in arrived], axis=0)
    assert np.array_equal(find_sum(parties, arrived, helpers), expected)
