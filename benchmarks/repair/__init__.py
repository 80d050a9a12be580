"""How long audits and checks of very many ledgers take, and how fast a lost bookie is repaired."""
