"""The Serve applications of a fleet, as builders that take typed arguments (`deploy/serve_args.py`)."""

# No `from __future__ import annotations` here: Serve looks at the annotation itself to make the typed argument.
from ray import serve
from ray.serve import Application

from deploy.canary_actor import CanaryActor
from deploy.manifest import CONTROLLER_DEPLOYMENT, PATH_DEPLOYMENT, ROUTER_DEPLOYMENT
from deploy.path_replica import PathReplica
from deploy.router_replica import RouterReplica
from deploy.serve_args import ControllerArgs, PathArgs, RouterArgs


def controller(args: ControllerArgs) -> Application:
    """The judge, exactly one."""
    return serve.deployment(name=CONTROLLER_DEPLOYMENT)(CanaryActor).bind(args)


def path(args: PathArgs) -> Application:
    """The replicas of one path."""
    return serve.deployment(name=PATH_DEPLOYMENT)(PathReplica).bind(args)


def router(args: RouterArgs) -> Application:
    """The OpenAI-compatible front."""
    return serve.deployment(name=ROUTER_DEPLOYMENT)(serve.ingress()(RouterReplica)).bind(args)
