"""What imports nothing else of gpuscale: errors, units, text, the host, two tables of facts."""
