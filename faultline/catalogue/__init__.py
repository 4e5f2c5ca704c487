"""The catalogue: the records of what each folder in repros/ says of its failure, and what authors write them with.

For others: `history`, `loading`, `outcomes`, `recognition`, `records`, `stories`.
"""

from faultline.catalogue.history import Change as Change
from faultline.catalogue.history import History as History
from faultline.catalogue.records import EVERY_MODE as EVERY_MODE
from faultline.catalogue.records import REMEDIES as REMEDIES
from faultline.catalogue.records import TRIED_HERE as TRIED_HERE
from faultline.catalogue.records import Claim as Claim
from faultline.catalogue.records import Failure as Failure
from faultline.catalogue.records import Variant as Variant
from faultline.catalogue.records import changes as changes
from faultline.catalogue.records import detects as detects
from faultline.catalogue.records import fails as fails
from faultline.catalogue.records import helps as helps
from faultline.catalogue.records import present as present
from faultline.catalogue.records import shows as shows
from faultline.catalogue.records import trains as trains
from faultline.catalogue.records import variants as variants
