"""The board: what every limit and every connection does now, ready to be shown, searched and sorted."""

from admin.board.board import Board
from admin.board.connections import ConnectionQuery
from admin.board.query import Query

__all__ = ["Board", "ConnectionQuery", "Query"]
