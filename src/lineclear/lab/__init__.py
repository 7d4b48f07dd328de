"""The lab: asks servers over HTTP, judges what they answer, and counts what goes wrong when faults are armed."""
