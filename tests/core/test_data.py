"""The data: the real ones, all of them, normalised alike; anything else is said in one line."""

import contextlib
import gzip
import hashlib
import http.server
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from torch.utils.data import DataLoader, Subset
from torchvision import transforms

from core import data, download, idx_files
from core.config import Config
from core.data import ImageSet, keep, load_data
from core.idx_files import FILES, idx_header

VARIANTS = Path(data.__file__).parents[1]
OTHERS = ("fashion_mnist", "kmnist")


def config(**changes):
    return Config(**changes)


def error_of(capsys, **changes) -> str:
    """What load_data says on stderr when it refuses; asserts that this is one line and exit code 2."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        load_data(config(**changes))
    assert stopped.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


@pytest.fixture(scope="module")
def mnist():
    return load_data(config())


@pytest.fixture(scope="module")
def arrays():
    with np.load(data.BUNDLED, allow_pickle=False) as stored:
        return {name: stored[name] for name in FILES}


@pytest.fixture(scope="module")
def stand_in():
    """Arrays shaped like Fashion-MNIST and KMNIST: ten patterns under noise, each class equally often."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 200, (10, 28, 28), dtype=np.uint8)
    made = {}
    for half, count in (("train", 60000), ("test", 10000)):
        labels = rng.permutation(np.arange(count) % 10).astype(np.uint8)
        noise = np.frombuffer(rng.bytes(count * 784), np.uint8).reshape(-1, 28, 28) % 8
        made |= {f"{half}_images": patterns[labels] + noise, f"{half}_labels": labels}
    return made


def write_root(root: Path, dataset: str, arrays) -> Path:
    raw = root / idx_files.CLASS_NAMES[dataset] / "raw"
    raw.mkdir(parents=True)
    for name, (file, shape) in FILES.items():
        (raw / file).write_bytes(idx_header(shape) + arrays[name].tobytes())
    return root


@pytest.fixture(scope="module")
def good_roots(tmp_path_factory, arrays, stand_in):
    """One torchvision root for each data set, written as IDX files."""
    roots = {"mnist": write_root(tmp_path_factory.mktemp("mnist"), "mnist", arrays)}
    for dataset in OTHERS:
        roots[dataset] = write_root(tmp_path_factory.mktemp(dataset), dataset, stand_in)
    return roots


@pytest.fixture
def linked_root(tmp_path, good_roots):
    """Makes a root of links to the good files, for a test to put something else in place of one."""

    def make(dataset: str) -> tuple[Path, Path]:
        raw = tmp_path / idx_files.CLASS_NAMES[dataset] / "raw"
        raw.mkdir(parents=True)
        for file, _ in FILES.values():
            (raw / file).symlink_to(good_roots[dataset] / idx_files.CLASS_NAMES[dataset] / "raw" / file)
        return tmp_path, raw

    return make


def replace(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)


# --- The bundled MNIST


@pytest.mark.parametrize("name", FILES)
def test_the_bundled_arrays_are_the_four_original_files(arrays, name):
    original = idx_header(FILES[name][1]) + arrays[name].tobytes()
    assert (
        hashlib.sha256(original).hexdigest()
        == {
            "train_images": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "train_labels": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "test_images": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "test_labels": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        }[name]
    )


def test_sizes_and_class_counts(mnist):
    train, test = mnist
    assert (len(train), len(test)) == (60000, 10000)
    assert train.images.dtype == torch.uint8 and train.images.shape == (60000, 1, 28, 28)
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert torch.bincount(train.labels).tolist() == counts
    assert torch.bincount(test.labels).tolist() == idx_files.MNIST_CLASS_COUNTS["test_labels"]


def test_the_training_set_is_normalised_to_mean_0_and_deviation_1(mnist):
    images, _ = mnist[0].__getitems__(range(60000))
    assert abs(images.mean().item()) < 1e-3
    assert abs(images.std().item() - 1) < 1e-3


def test_the_test_set_is_normalised_with_the_constants_of_the_training_set(mnist):
    images, _ = mnist[1].__getitems__(range(10000))
    assert images.mean().item() == pytest.approx((0.132515 - 0.1307) / 0.3081, abs=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_images_are_bit_for_bit_those_of_torchvision(dtype):
    every_byte = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)
    ours, _ = ImageSet(every_byte, torch.tensor([0]), getattr(torch, dtype))[0]
    normalise = transforms.Normalize((0.1307,), (0.3081,))
    if dtype == "float32":
        theirs = normalise(transforms.ToTensor()(every_byte[0, 0].numpy()))
    else:  # ToTensor knows no float64
        theirs = normalise(every_byte[0].double() / 255)
    assert ours.dtype == theirs.dtype
    assert torch.equal(ours, theirs)


def test_a_gather_is_its_items(mnist):
    train, _ = mnist
    wanted = [59999, 0, 31, 31, 12345]
    images, labels = train.__getitems__(wanted)
    assert images.shape == (5, 1, 28, 28) and images.dtype == torch.float32 and labels.dtype == torch.int64
    for row, index in enumerate(wanted):
        image, label = train[index]
        assert torch.equal(images[row], image)
        assert labels[row] == label


def test_the_loader_hands_on_what_the_set_gathered(mnist):
    train, _ = mnist
    images, labels = next(iter(DataLoader(train, batch_size=3, collate_fn=keep)))
    for mine, theirs in zip((images, labels), train.__getitems__([0, 1, 2]), strict=True):
        assert torch.equal(mine, theirs)
    images, _ = next(iter(DataLoader(Subset(train, [7, 5]), batch_size=2, collate_fn=keep)))
    assert torch.equal(images, train.__getitems__([7, 5])[0])


def test_taking_images_out_leaves_the_set_as_it_was(mnist):
    train, _ = mnist
    before = train.images[:2].clone()
    images, labels = train.__getitems__([0, 1])
    images.zero_()
    labels.fill_(-1)
    train[0][0].zero_()
    assert torch.equal(train.images[:2], before) and train.labels[0] == 5


def test_train_images_takes_the_first_and_spares_the_test_set(mnist):
    train, test = load_data(config(train_images=200, dtype="float64"))
    assert (len(train), len(test)) == (200, 10000)
    assert torch.equal(train.images, mnist[0].images[:200])
    assert torch.equal(train.labels, mnist[0].labels[:200])
    assert train[0][0].dtype == torch.float64
    assert len(pickle.dumps(train)) < 400_000  # the other images are not pickled along


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_worker_processes_take_the_set_and_the_collate_function(method):
    train, _ = load_data(config(train_images=128))
    loader = DataLoader(
        train, batch_size=64, num_workers=2, collate_fn=keep, multiprocessing_context=method, timeout=60
    )
    batches = list(loader)
    assert torch.equal(torch.cat([images for images, _ in batches]), train.__getitems__(range(128))[0])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train_images": 60001}, "--train-images takes a whole number from 1 to 60000, got 60001"),
        ({"global_batch_size": 60001}, "larger than the training set of 60000 images"),
        ({"train_images": 100, "global_batch_size": 101}, "larger than the training set"),
    ],
)
def test_what_cannot_be_asked_for(capsys, changes, said):
    assert said in error_of(capsys, **changes)


@pytest.mark.parametrize("damage", ["cut", "text", "other arrays", "labels", "gone"])
def test_a_damaged_bundle_is_said(capsys, monkeypatch, tmp_path, arrays, damage):
    path = tmp_path / "mnist.npz"
    if damage == "cut":
        path.write_bytes(data.BUNDLED.read_bytes()[:1_000_000])
    elif damage == "text":
        path.write_text("version https://git-lfs.github.com/spec/v1\n")
    elif damage == "other arrays":
        np.savez(path, x_train=arrays["test_labels"])
    elif damage == "labels":
        np.savez(path, **{**arrays, "test_labels": np.roll(arrays["test_labels"], 1)})
    monkeypatch.setattr(data, "BUNDLED", path)
    assert str(path) in error_of(capsys)


# --- A torchvision root


@pytest.mark.parametrize("dataset", idx_files.CLASS_NAMES)
def test_a_torchvision_root_reads_as_torchvision_reads_it(good_roots, dataset):
    ours = load_data(config(dataset=dataset, data_dir=str(good_roots[dataset])))
    for half, is_train in zip(ours, (True, False), strict=True):
        theirs = getattr(torchvision.datasets, idx_files.CLASS_NAMES[dataset])(
            good_roots[dataset], train=is_train
        )
        assert torch.equal(half.images[:, 0], theirs.data)
        assert torch.equal(half.labels, theirs.targets)


def test_the_root_of_mnist_gives_the_bundled_set(mnist, good_roots):
    train, _ = load_data(config(data_dir=str(good_roots["mnist"])))
    assert torch.equal(train.images, mnist[0].images)


def damaged(kind: str, name: str, arrays) -> bytes:
    good = idx_header(FILES[name][1]) + arrays[name].tobytes()
    header = len(idx_header(FILES[name][1]))
    return {
        "truncated": lambda: good[: len(good) // 2],
        "empty": lambda: b"",
        "html": lambda: b"\n<!DOCTYPE html><title>403 Forbidden</title>",
        "zeros": lambda: good[:header] + bytes(len(good) - header),
        "shifted": lambda: good[:header] + np.roll(arrays[name], 1).tobytes(),
        "renumbered": lambda: good[:header] + ((arrays[name] + 1) % 10).tobytes(),
        "label 10": lambda: good[:header] + b"\x0a" + good[header + 1 :],
        "compressed": lambda: gzip.compress(good[:1000]),
        "another": lambda: idx_header((60000, 784)).ljust(header, b"\0") + good[header:],
    }[kind]()


DAMAGES = [
    ("truncated", "train_images", "has 23520008 bytes instead of 47040016"),
    ("truncated", "test_labels", "has 5004 bytes instead of 10008"),
    ("empty", "train_labels", "is empty"),
    ("html", "test_images", "is a web page"),
    ("zeros", "train_images", "is blank: every pixel is 0"),
    ("zeros", "test_images", "is blank: every pixel is 0"),
    ("zeros", "train_labels", "wrong labels: the ten classes appear [60000, 0, "),
    (
        "shifted",
        "train_labels",
        ("is not the original, by its SHA-256", "or train-labels-idx1-ubyte does not go"),
    ),
    ("shifted", "test_labels", ("is not the original, by its SHA-256", "shifted or shuffled")),
    ("renumbered", "train_labels", ("wrong labels", "or train-labels-idx1-ubyte does not go")),
    ("label 10", "test_labels", "has a label 10"),
    ("compressed", "train_images", "is still compressed"),
    ("another", "train_images", "is not the IDX file of 60000 x 28 x 28 bytes"),
]


@pytest.mark.parametrize("dataset", ["mnist", "kmnist"])
@pytest.mark.parametrize(("kind", "name", "said"), DAMAGES, ids=lambda value: str(value)[:12])
def test_damaged_files_are_found_and_said(capsys, linked_root, arrays, stand_in, dataset, kind, name, said):
    root, raw = linked_root(dataset)
    path = raw / FILES[name][0]
    replace(path, damaged(kind, name, arrays if dataset == "mnist" else stand_in))
    said = said if isinstance(said, str) else said[dataset != "mnist"]
    message = error_of(capsys, dataset=dataset, data_dir=str(root))
    assert said in message
    assert str(raw) in message and path.name in message and "delete it" in message


def test_a_changed_pixel_of_mnist_is_found(capsys, linked_root, arrays):
    root, raw = linked_root("mnist")
    changed = arrays["test_images"].copy()
    changed[1234, 14, 14] ^= 1
    replace(raw / FILES["test_images"][0], idx_header(changed.shape) + changed.tobytes())
    assert "SHA-256" in error_of(capsys, data_dir=str(root))


def test_a_changed_file_is_found_by_the_original_archive_beside_it(
    capsys, monkeypatch, linked_root, stand_in
):
    root, raw = linked_root("kmnist")
    file, shape = FILES["test_labels"]
    archive = raw / f"{file}.gz"
    archive.write_bytes(gzip.compress(idx_header(shape) + stand_in["test_labels"].tobytes()))
    digest = hashlib.md5(archive.read_bytes()).hexdigest()
    monkeypatch.setattr(torchvision.datasets.KMNIST, "resources", [(archive.name, digest)])
    load_data(config(dataset="kmnist", data_dir=str(root)))

    changed = stand_in["test_labels"].copy()
    one, another = np.argmax(changed == 1), np.argmax(changed == 2)
    changed[[one, another]] = [2, 1]  # the counts stay, and one in 5,000 is nothing to the mean images
    replace(raw / file, idx_header(shape) + changed.tobytes())
    message = error_of(capsys, dataset="kmnist", data_dir=str(root))
    assert f"{file} is not what {file}.gz beside it holds" in message


# --- Read-only folders. The tests may run as root, whom no permission stops: then they take the rights of
# an ordinary user for as long as the call lasts. The kernel refuses, nothing is patched.


class _Unprivileged:
    def __enter__(self):
        self.was_root = os.geteuid() == 0
        if self.was_root:
            os.seteuid(65534)

    def __exit__(self, *_):
        if self.was_root:
            os.seteuid(0)


@pytest.fixture
def open_folder():
    """A folder that every user may reach (pytest's own are for one user only)."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    for path in (folder, *folder.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(folder)


def lock_up(root: Path) -> None:
    for path in sorted(root.rglob("*"), reverse=True):
        path.chmod(0o555 if path.is_dir() else 0o444)
    root.chmod(0o555)


def test_a_read_only_folder_with_data_loads_and_stays_as_it_is(open_folder, stand_in):
    root = write_root(open_folder / "root", "kmnist", stand_in)
    lock_up(root)

    def state():
        return [(path, path.stat().st_mtime_ns) for path in sorted([root, *root.rglob("*")])]

    before = state()
    with _Unprivileged():
        with pytest.raises(PermissionError):
            (root / "probe").touch()
        load_data(config(dataset="kmnist", data_dir=str(root)))
    assert state() == before


def test_a_read_only_folder_without_data_is_named(capsys, open_folder):
    root = open_folder / "root"
    root.mkdir()
    lock_up(root)
    with _Unprivileged():
        message = error_of(capsys, dataset="kmnist", data_dir=str(root))
    assert f"kmnist is not in {root}/KMNIST/raw" in message
    assert "nothing can be written there (Permission denied)" in message


def test_a_root_that_is_a_file_is_named(capsys, tmp_path):
    root = tmp_path / "file"
    root.touch()
    assert str(root) in error_of(capsys, dataset="kmnist", data_dir=str(root))


def test_without_data_dir_downloads_go_to_the_cache_of_the_user(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(data, "default_root", lambda: tmp_path / "cache")
    monkeypatch.setattr(torchvision.datasets.KMNIST, "mirrors", ["http://127.0.0.1:1/"])
    assert f"kmnist is not in {tmp_path}/cache/KMNIST/raw" in error_of(capsys, dataset="kmnist")
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert download.default_root().name == "ddp-side-by-side"


# --- Downloads, from a server of our own on loopback


class Server:
    """Serves FILES as torchvision's mirrors do, and counts what was asked for."""

    def __init__(self, files: dict[str, bytes], broken: str | None = None) -> None:
        asked = self.asked = []
        over = self.over = threading.Event()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                name = self.path.lstrip("/")
                if self.headers.get("Method") != "HEAD":  # so torchvision asks for redirects, with GET
                    asked.append(name)
                    time.sleep(0.2)  # leave the others time to collide
                if broken == "silent":
                    over.wait()
                    return
                body = b"<html>log in first</html>" if broken == "html" else files[name]
                self.send_response(403 if broken == "forbidden" else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with contextlib.suppress(OSError):  # the question about redirects does not read on
                    self.wfile.write(body[: len(body) // 2] if broken == "half" else body)

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}/"

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture(scope="module")
def archives(stand_in):
    made = {}
    for name, (file, shape) in FILES.items():
        made[f"{file}.gz"] = gzip.compress(idx_header(shape) + stand_in[name].tobytes(), compresslevel=1)
    return made


def md5s(archives):
    return [(name, hashlib.md5(content).hexdigest()) for name, content in archives.items()]


@pytest.fixture
def served(monkeypatch, archives):
    """Points torchvision's KMNIST at a server."""

    def point(server: Server) -> None:
        monkeypatch.setattr(torchvision.datasets.KMNIST, "mirrors", [server.url])
        monkeypatch.setattr(torchvision.datasets.KMNIST, "resources", md5s(archives))

    return point


FOUR_RANKS = """
import multiprocessing, os, sys, time
import torchvision.datasets

sys.path.insert(0, {variants!r})
from core.config import Config
from core.data import load_data

{setup}

def rank(number, start):
    os.environ |= {{"TORCHELASTIC_RUN_ID": "test", "LOCAL_RANK": str(number)}}  # as torchrun sets them
    cfg = Config(
        dataset="kmnist", data_dir={root!r}, train_images=None, dtype="float32", global_batch_size=8
    )
    start.wait()
    train, test = load_data(cfg)
    os.write(1, f"loaded {{len(train)}} {{len(test)}}\\n".encode())

if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")  # one import of torch for all four
    start = fork.Barrier(4)
    ranks = [fork.Process(target=rank, args=(number, start)) for number in range(4)]
    for process in ranks:
        process.start()
    while any(process.is_alive() for process in ranks):
        time.sleep(0.1)
        if any(process.exitcode for process in ranks):  # as torchrun does: one that fails ends all
            for process in ranks:
                process.kill()
    sys.exit(max(process.exitcode for process in ranks))
"""


def four_ranks(root: Path, setup: str = "", **environment: str) -> subprocess.CompletedProcess:
    script = FOUR_RANKS.format(variants=str(VARIANTS), setup=setup, root=str(root))
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )


def test_four_processes_and_a_cold_root_download_once(tmp_path, archives):
    with Server(archives) as server:
        source = f"kmnist.mirrors, kmnist.resources = [{server.url!r}], {md5s(archives)!r}"
        done = four_ranks(tmp_path, f"kmnist = torchvision.datasets.KMNIST; {source}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["loaded 60000 10000"] * 4
    assert sorted(server.asked) == sorted(archives)
    raw = {path.name for path in (tmp_path / "KMNIST" / "raw").iterdir()}
    assert raw == {*archives, *(name.removesuffix(".gz") for name in archives)}
    assert not (tmp_path / ".KMNIST.part").exists()


@pytest.mark.slow
def test_four_processes_offline_say_one_line_soon(tmp_path):
    """The real mirror, through a proxy that does not answer: as behind a firewall, wherever this runs."""
    with Server({}, broken="silent") as server:
        begun = time.monotonic()
        done = four_ranks(tmp_path, http_proxy=server.url, https_proxy=server.url, no_proxy="")
        # 15 s is the promise on an idle machine; one busy with other tests imports torch that long
        assert time.monotonic() - begun < 60
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"error: kmnist is not in {tmp_path}/KMNIST/raw" in line
    assert "--dataset mnist without --data-dir" in line
    for name, digest in torchvision.datasets.KMNIST.resources:
        assert f"{name} (MD5 {digest})" in line


def test_a_server_that_does_not_answer_is_given_up(capsys, monkeypatch, tmp_path, served):
    monkeypatch.setattr(download, "FIRST_BYTE_S", 0.5)
    with Server({}, broken="silent") as server:
        served(server)
        assert "nothing arrived for" in error_of(capsys, dataset="kmnist", data_dir=str(tmp_path))


@pytest.mark.parametrize("broken", ["html", "half", "forbidden"])
def test_a_bad_download_leaves_nothing_behind(capsys, tmp_path, served, archives, broken):
    with Server(archives, broken=broken) as server:
        served(server)
        with pytest.raises(SystemExit):
            load_data(config(dataset="kmnist", data_dir=str(tmp_path)))
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert "the download failed" in line
    assert not list((tmp_path / "KMNIST" / "raw").iterdir())
    assert not (tmp_path / ".KMNIST.part").exists()


def test_archives_put_there_by_hand_need_no_network(tmp_path, served, archives, stand_in):
    raw = tmp_path / "KMNIST" / "raw"
    raw.mkdir(parents=True)
    for name, content in archives.items():
        (raw / name).write_bytes(content)
    with Server({}) as server:
        served(server)
        train, _ = load_data(config(dataset="kmnist", data_dir=str(tmp_path)))
    assert server.asked == []
    assert torch.equal(train.images[:, 0], torch.from_numpy(stand_in["train_images"]))


def test_only_the_missing_file_is_replaced(linked_root, served, archives):
    root, raw = linked_root("kmnist")
    missing, *kept = [file for file, _ in FILES.values()]
    (raw / missing).unlink()
    with Server(archives) as server:
        served(server)
        load_data(config(dataset="kmnist", data_dir=str(root)))
    assert (raw / missing).is_file() and not (raw / missing).is_symlink()
    assert all((raw / file).is_symlink() for file in kept)


def test_a_run_on_several_machines_says_which_lacks_the_data(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(torchvision.datasets.KMNIST, "mirrors", ["http://127.0.0.1:1/"])
    monkeypatch.setattr(download.platform, "node", lambda: "node7")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert "KMNIST/raw on node7" in error_of(capsys, dataset="kmnist", data_dir=str(tmp_path))
