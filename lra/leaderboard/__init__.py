"""The leaderboard of published and measured results, and a card for each mechanism."""
