"""The viewer in the browser: robots while they learn, and policies to steer, push and compare.

`frames` holds what is drawn, `controls` and `session` what the user asks for and how a task carries it out; none of
them needs a browser. `server` and `page` are the part that viser and mjviser draw, `training` connects a running
training to a page in a process of its own.
"""
