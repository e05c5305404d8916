"""From runs to numbers: statistics, scaling, the efficiency budget, projections, histories."""
