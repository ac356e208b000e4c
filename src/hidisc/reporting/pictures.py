"""The names of `tiles`, `points` and `sheets` in one place, for the modules that compose the page."""

from hidisc.reporting.points import Column as Column
from hidisc.reporting.points import choose_points as choose_points
from hidisc.reporting.points import find_map_input as find_map_input
from hidisc.reporting.points import judge_patches as judge_patches
from hidisc.reporting.points import name_points as name_points
from hidisc.reporting.points import read_points as read_points
from hidisc.reporting.sheets import SheetRow as SheetRow
from hidisc.reporting.sheets import Shown as Shown
from hidisc.reporting.sheets import choose_queries as choose_queries
from hidisc.reporting.sheets import draw_sheet as draw_sheet
from hidisc.reporting.sheets import make_sheet as make_sheet
from hidisc.reporting.tiles import PatchReader as PatchReader
from hidisc.reporting.tiles import Sprite as Sprite
