"""One replica of the front: the router's ASGI app over Ray handles and token sockets."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid

from starlette.applications import Starlette

from deploy.manifest import model_name
from deploy.serve_args import RouterArgs
from fleet.clock import SystemClock

logger = logging.getLogger("ray.serve")


class RouterReplica:
    """Builds the router in its own process. Serve routes HTTP to the app and runs its lifespan."""

    async def __init__(self, args: RouterArgs) -> None:  # type: ignore[misc]  # Serve awaits it
        # Serve builds every application in a short-lived process of its own; the tokenizer's libraries stay out of it.
        from deploy.ray_backend import RayBackend, RayControl, controller_handle, path_handles
        from fleet.tokenizer import Tokenizer
        from replicas.engine.decoder_config import load_config
        from replicas.model_store import resolve_model
        from router.dispatch import Dispatcher, RouterIdentity
        from router.http_api import build_app
        from router.intake import ServedModel

        folder = await asyncio.to_thread(resolve_model, args.model, logger.info)
        self._backend = RayBackend(path_handles(args.paths))
        identity = RouterIdentity(uuid.uuid4().hex[:12], frozenset(args.paths), args.stable, os.getpid())
        self._app = build_app(
            Dispatcher(self._backend, args.router, identity, SystemClock()),
            Tokenizer.load(folder),
            RayControl(controller_handle(), self._backend.note_ready),
            ServedModel(
                name=model_name(args.model),
                root=args.model.model,
                max_model_len=args.model.max_model_len or load_config(folder).max_position_embeddings,
                created=int(time.time()),
            ),
            args.router,
        )

    def __serve_build_asgi_app__(self) -> Starlette:
        return self._app

    async def __del__(self) -> None:
        if hasattr(self, "_backend"):
            await self._backend.close()
