"""The doctor: reads the store, and names whatever breaks an invariant that can be read off it.

``examination`` is where to begin. Each other module looks at one part of the store; what it finds
is certain, though clusters may be at work meanwhile: a suspicion is looked at again, in an order in
which no move of a job can look like a fault.
"""
