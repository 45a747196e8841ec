"""What people read of a campaign: HTML, JUnit XML and markdown, all drawn from where it stands."""
