"""How is a representative slice of live requests kept, without keeping what is nobody's business?"""
