"""Analysis of runs: statistics, scaling, the efficiency budget, projections and histories."""
