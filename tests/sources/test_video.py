"""Videos: the frames at regular times, in any order, of whole and of damaged files."""

import io
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from acclimate import Classifier
from acclimate.errors import ImageError, InputError, MissingExtraError, install_command
from acclimate.images.opening import open_image
from acclimate.sources import open_source
from acclimate.sources.video import _Decoder, _decoder, is_frame, open_video
from small_images import draw, labels, names

av = pytest.importorskip("av")
# frames per second, frames, and the difference in shade between two of them
RATE = 10
COUNT = 50
STEP = 5


def write_video(target, codec="mpeg4", noise=False, **options):
    """Five seconds of frames, each a little brighter than the one before."""
    random = np.random.default_rng(0)
    with av.open(target, "w", **options) as container:
        stream = container.add_stream(codec, rate=RATE)
        stream.width = 64
        stream.height = 48
        stream.pix_fmt = "yuv420p"
        stream.gop_size = 12
        stream.bit_rate = 8_000_000  # preserves shades
        for number in range(COUNT):
            pixels = random.integers(0, 256, (48, 64, 3)) if noise else np.full((48, 64, 3), STEP * number)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels.astype(np.uint8))))
        container.mux(stream.encode())
    return target


def frame_of(sample):
    """Return the number of the frame, from its shade."""
    return round(np.asarray(open_image(sample.read())).mean() / STEP)


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return str(write_video(tmp_path_factory.mktemp("video") / "clip.mp4"))


@pytest.mark.parametrize(
    ("file", "codec"),
    [("a.mp4", "mpeg4"), ("a.MOV", "libx264"), ("a.avi", "mpeg4"), ("a.mkv", "libx264"), ("a.webm", "libvpx")],
)
def test_frames_at_regular_times(here, file, codec):
    if codec not in av.codecs_available:
        pytest.skip(f"no {codec} here")
    write_video(file, codec)
    samples = open_source(file)
    assert names(samples) == [f"{file}#{second}.0s" for second in range(5)]
    assert [frame_of(sample) for sample in samples] == [0, 10, 20, 30, 40]
    assert [frame_of(sample) for sample in open_source(file, fps=2.5)] == list(range(0, 50, 4))[:13]
    assert names(open_source(file, fps=0.1)) == [f"{file}#0.0s"]
    every = open_source(file, fps=1000)  # no more than there are
    assert [frame_of(sample) for sample in every] == list(range(COUNT))
    assert names(every)[-1] == f"{file}#4.9s"


@given(st.permutations(range(COUNT)), st.integers(min_value=1, max_value=8))
@settings(max_examples=8)
def test_any_order_and_any_number_of_threads_give_the_same_frames(clip, order, threads):
    samples = open_source(clip, fps=RATE)
    with ThreadPoolExecutor(threads) as pool:
        assert list(pool.map(lambda place: frame_of(samples[place]), order)) == list(order)


def test_going_forward_decodes_every_frame_once(clip, monkeypatch):
    moves = []
    pulled = []
    move = _Decoder._move
    pull = _Decoder._pull
    monkeypatch.setattr(_Decoder, "_move", lambda self, index: [moves.append(index), move(self, index)])

    def count(self):
        waiting = len(self._decoded)
        found = pull(self)
        pulled.append(len(self._decoded) - waiting)
        return found

    monkeypatch.setattr(_Decoder, "_pull", count)
    decoder = _Decoder(clip, 1.0)
    for index in (1, 0, 2, 4, 3):  # the order of threads
        decoder.read(index)
    assert moves == [1, 0]  # the first request was for 1, so 0 lay behind
    assert sum(pulled) <= COUNT + 12


def test_frames_are_told_from_images(here, clip):
    assert [is_frame(sample) for sample in open_source([draw(here / "a.png"), clip], fps=0.5)] == [
        False,
        True,
        True,
        True,
    ]


def test_beginning_in_the_middle(clip):
    assert frame_of(open_source(clip)[3]) == 30


def test_frames_travel_to_other_processes(clip):
    assert frame_of(pickle.loads(pickle.dumps(open_source(clip)[2]))) == 20


def test_videos_among_images(here, clip):
    draw(here / "photos/cats/a.png")
    (here / "photos/cats/b.mp4").symlink_to(clip)
    (here / "list.csv").write_text("file,class\nphotos/cats/b.mp4,tabby\n")
    samples = open_source("photos", fps=0.5)
    assert names(samples) == ["photos/cats/a.png", *(f"photos/cats/b.mp4#{second}.0s" for second in (0, 2, 4))]
    assert labels(samples) == ["cats"] * 4
    assert labels(open_source("list.csv", fps=0.5)) == ["tabby"] * 3
    assert (
        names(open_source("-", io.StringIO("photos/cats/b.mp4\n"), fps=0.25))
        == names(samples)[1:2] + names(samples)[3:]
    )
    assert names(open_source(["photos/cats/b.mp4", "photos"], fps=0.5)) == names(samples)[1:] + names(samples)[:1]
    for fps in (0, -1, 1001, float("nan")):
        with pytest.raises(InputError, match="frames per second must be more than 0 and at most 1000"):
            open_source("photos", fps=fps)


def test_a_video_that_cannot_be_opened_is_one_sample_that_fails(here, clip):
    content = Path(clip).read_bytes()
    for name, written in {
        "cut.mp4": content[: len(content) // 2],
        "empty.mp4": b"",
        "text.avi": b"hello " * 99,
    }.items():
        (here / name).write_bytes(written)
        (sample,) = open_source(name)
        assert sample.name == name
        with pytest.raises(OSError, match="the video cannot be read: "):
            sample.read()


def test_a_sound_file_has_no_frames(here):
    with av.open("sound.mkv", "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
    (sample,) = open_source("sound.mkv")
    with pytest.raises(OSError, match="no video stream"):
        sample.read()


def test_frames_behind_the_end_of_a_truncated_video_fail(here):
    write_video("whole.mp4", noise=True, options={"movflags": "faststart"})
    content = (here / "whole.mp4").read_bytes()
    (here / "cut.mp4").write_bytes(content[: len(content) // 2])
    outcomes = []
    for sample in open_source("cut.mp4"):
        try:
            outcomes.append(Image.open(io.BytesIO(sample.read())).size)
        except OSError as error:
            outcomes.append(str(error))
    assert outcomes[:2] == [(64, 48)] * 2
    assert "truncated or damaged" in outcomes[-1] or "cannot be read" in outcomes[-1]
    (here / "spoilt.mp4").write_bytes(content[: len(content) // 2] + bytes(4000) + content[len(content) // 2 + 4000 :])
    last = open_source("spoilt.mp4")[-1]
    assert open_image(last.read()).size == (64, 48)


class Pipe(io.RawIOBase):
    """A file without seeking, so that the length is never written."""

    def __init__(self):
        self.content = b""

    def writable(self):
        return True

    def write(self, part):
        self.content += bytes(part)
        return len(part)


def test_a_video_of_unknown_length_is_counted(here):
    pipe = write_video(Pipe(), format="matroska")
    (here / "live.mkv").write_bytes(pipe.content)
    with av.open("live.mkv") as container:
        assert container.duration is None
    assert [frame_of(sample) for sample in open_source("live.mkv")] == [0, 10, 20, 30, 40]


def test_a_length_that_cannot_be_believed_is_counted(clip, monkeypatch):
    monkeypatch.setattr("acclimate.sources.video.MAX_TRUSTED_FRAMES", 3)
    assert len(open_source(clip)) == 5


def test_pixels_are_limited(clip, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    _decoder.cache_clear()
    (sample,) = open_source(clip)
    with pytest.raises(OSError, match=r"64 x 48 pixels: more than 0\.002 million; .* a larger --max-pixels"):
        sample.read()
    monkeypatch.undo()
    with pytest.raises(ImageError, match="64 x 48 pixels: more than"):
        open_image(open_source(clip)[0].read(), max_pixels=100)


def test_without_pyav(here, clip, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingExtraError, match=r"is a video, which needs PyAV: .*\[video\]"):
        open_video(clip)
    draw(here / "photos/a.png")
    (here / "photos/b.mp4").write_bytes(b"")
    assert open_source("photos").left_out == f"1 .mp4 (needs PyAV: {install_command('video')})"


def test_a_broken_pyav_is_named(here, clip, monkeypatch):
    (here / "broken").mkdir()
    (here / "broken/av.py").write_text("raise OSError('libavcodec.so: cannot open')")
    monkeypatch.syspath_prepend(here / "broken")
    monkeypatch.delitem(sys.modules, "av", raising=False)
    message = r"needs PyAV, which is installed but cannot be imported \(libavcodec\.so: cannot open\); reinstall it"
    with pytest.raises(MissingExtraError, match=message):
        open_video(clip)
    with pytest.raises(InputError, match=message):
        open_source(str(clip))


def write_sparse_video(target, times):
    """Return a frame at each of some times, in seconds."""
    with av.open(target, "w") as container:
        stream = container.add_stream("mpeg4", rate=RATE)
        stream.width = 64
        stream.height = 48
        stream.pix_fmt = "yuv420p"
        for number, time in enumerate(times):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), STEP * 10 * number, np.uint8))
            frame.pts = round(time * RATE)
            frame.time_base = Fraction(1, RATE)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return target


def test_a_frame_that_is_shown_for_long_is_read_by_several_threads(here):
    samples = open_source(str(write_sparse_video("recording.mkv", [0, 1, 30])))
    for _ in range(3):
        with ThreadPoolExecutor(8) as pool:
            shown = [number // 10 for number in pool.map(frame_of, samples[:31])]
        assert shown == [0, *[1] * 29, 2]


def test_times_that_lie_do_not_fill_the_memory(here):
    assert len(open_source(str(write_sparse_video("lies.mkv", [0, 1, 10**8])))) <= 100_000


def test_a_video_in_python_is_its_frames(clip):
    classifier = Classifier(["dark", "bright"])
    frames = [f"{clip}#{second}.0s" for second in range(5)]
    for images in (clip, Path(clip), [clip]):
        assert [each.name for each in classifier.stream(images)] == frames
    assert [len(answers) for answers in classifier(clip)] == [2] * 5
