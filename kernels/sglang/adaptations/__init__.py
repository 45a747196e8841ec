"""What has to be said to a release, or put in place of a part of it, that has no server, no GPU and no model.

Nothing in here touches how a backend plans, pads, writes or calls: only what is imported and what a server would have
set up. Each row names the versions it is for and the line of SGLang that it was read from; a version without rows of
its own gets those of the nearest one before it.
"""
