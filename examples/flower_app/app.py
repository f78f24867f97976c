"""FedVeca in a Flower app: `serve` in the ServerApp, `answer` in the ClientApp."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedveca import answer, serve

server = ServerApp()
client = ClientApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the experiment of the run-config; the result is an ordinary run."""
    run = serve(grid, context)
    print("kept model:", run.summary["kept"], "in", run.folder)


@client.train()
def train(message: Message, context: Context) -> Message:
    """One client's local steps."""
    return answer(message, context)


@client.query()
def query(message: Message, context: Context) -> Message:
    """Who this node is, and how many rows it has."""
    return answer(message, context)
