"""Reports of a campaign as HTML, JUnit XML and markdown, all rendered from its `Standing`."""
