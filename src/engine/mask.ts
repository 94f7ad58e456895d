// What constrains an answer token by token: grammars and schemas make one, the scheduler applies it. Knows nothing of how it is computed.

/** Which tokens may come next. One object an answer; it is asked before each token and told which one came. */
export interface TokenMask {
  /**
   * Allowed tokens of the next position, ceil(vocabulary / 32) words: token t is bit t % 32 of word t >> 5, set = allowed. Undefined: all are.
   * Called once a token, before it is drawn, while the device works; the words are copied at once, so the same array may be given again.
   * What it throws ends that answer alone.
   */
  next(): Uint32Array | undefined;
  /** The token that was drawn. Called before the answer's next `next`; not called for a token that ended the answer by a stop id. */
  accept(id: number): void;
}
