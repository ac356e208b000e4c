"""Pictures and pages to look at. `prepared`: what `hidisc prepare` kept, dropped and how it stained."""
