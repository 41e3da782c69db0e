"""A mock interview on two nodes: the project that shows singleflight_app at work.

It uses only what any project may: `singleflight_app`, its `contrib` and its `testing`.
"""
