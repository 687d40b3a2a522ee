"""Small networks that draft from the target's own hidden states: EAGLE, EAGLE-3 and Medusa, as published."""
