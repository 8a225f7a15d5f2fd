"""Record agents that call an OpenAI-compatible server: an HTTP proxy between agents and a model server, which adds all
calls to a `SessionRecorder`."""

from episodes.capture.proxy import CaptureProxy

__all__ = ["CaptureProxy"]
