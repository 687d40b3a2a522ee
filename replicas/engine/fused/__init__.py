"""Steps of few rows on a CPU: what lies between their products, compiled."""
