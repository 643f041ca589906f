"""A recorded run, trained again bit for bit."""
