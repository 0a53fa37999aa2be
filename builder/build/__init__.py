"""From a patched tree to an image: the plan, the rendered Dockerfile, the one layer, the result.

In: a spec, its series and its base. Out: manifests, configs and a layer in memory, which ``publish``
delivers, and what the lock is to say. Read first: ``pipeline.plan_overlay`` and ``plan.bake``.
"""
