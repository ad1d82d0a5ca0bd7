"""The meter of a served teacher: rates by an artificial clock, counts as Prometheus reads them."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from dfme.teachers.owner.guard.meter import Meter


class Clock:
    """Stands still until it is moved."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_coming_again_after_the_time_named_is_enough():
    clock = Clock()
    meter = Meter(images_per_second=100, requests_per_second=2, clock=clock)
    assert meter.admit(64) == 0
    assert meter.admit(64) == 1  # 36 of 100 images are left, 28 more take 0.28 s
    clock.now += 0.28
    assert meter.admit(64) == 0
    assert meter.admit(1000) == 1  # a whole second's worth, then ten seconds to pay it off
    clock.now += 1
    assert (meter.admit(1000), meter.admit(1)) == (0, 10)
    clock.now += 9.01
    assert meter.admit(1) == 0
    clock.now += 9
    # by requests, which take nothing off the images
    assert [meter.admit(5) for _ in range(4)] == [0, 0, 1, 1]


@settings(max_examples=100, deadline=None)
@given(
    st.floats(0.01, 1000),
    st.lists(st.tuples(st.integers(1, 500), st.floats(0, 3)), min_size=1, max_size=40),
)
def test_no_stretch_of_time_has_more_than_its_share(
    rate: float, asked: list[tuple[int, float]]
) -> None:
    clock = Clock()
    meter = Meter(images_per_second=rate, clock=clock)
    served: list[tuple[float, int]] = []
    for images, pause in asked:
        clock.now += pause
        wait = meter.admit(images)
        if wait:
            assert wait >= 1
            clock.now += wait
            assert meter.admit(images) == 0
        served.append((clock.now, images))
    for first, (start, _) in enumerate(served):
        for last in range(first, len(served)):
            before = sum(images for _, images in served[first:last])  # the last one may overdraw
            assert before <= rate * (served[last][0] - start) + rate + 0.05


def test_counts_are_in_the_text_format_of_prometheus():
    meter = Meter()
    meter.ask(7)
    meter.ask(5)
    meter.seconds, meter.answered, meter.failed = 0.25, 1, 1
    meter.refused.update({"rate limit": 2, "malformed": 1})
    text = meter.exposition("digits")
    sample = re.compile(r'(dfme_\w+)\{model="digits"(?:,reason="([\w ]+)")?\} ([\d.]+)')
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    samples = {
        match.groups()[:2]: float(match[3]) for line in lines if (match := sample.fullmatch(line))
    }
    assert samples == {
        ("dfme_images_served_total", None): 12,
        ("dfme_requests_served_total", None): 2,
        ("dfme_requests_answered_total", None): 1,
        ("dfme_requests_failed_total", None): 1,
        ("dfme_model_seconds_total", None): 0.25,
        ("dfme_requests_refused_total", "malformed"): 1,
        ("dfme_requests_refused_total", "rate limit"): 2,
    }
    assert len(samples) == len(lines)
    assert text.count("# TYPE") == text.count("# HELP") == 6
    assert meter.summary().startswith(
        "served 12 images in 2 requests (0.2 s of the model); 1 of them f"
    )
